"""The bridge that pods and the host share, and the kernel settings without which Services do not work."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.harness.commands import HarnessError, output_of, succeeds
from tests.cluster.harness.layout import BRIDGE, HOST_IP, POD_CIDR

FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
# A Service that leads back to a pod on the same bridge needs it, or the replies pass by the translation of addresses.
BRIDGE_FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


def up() -> None:
    if not succeeds("ip", "link", "show", BRIDGE):
        output_of("ip", "link", "add", BRIDGE, "type", "bridge")
    output_of("ip", "addr", "replace", f"{HOST_IP}/{POD_CIDR.partition('/')[2]}", "dev", BRIDGE)
    output_of("ip", "link", "set", BRIDGE, "up")
    if not BRIDGE_FILTER.exists():
        succeeds("modprobe", "br_netfilter")
    if not BRIDGE_FILTER.exists():
        raise HarnessError("the kernel module br_netfilter is missing: Services between pods need it")
    for setting in (FORWARDING, BRIDGE_FILTER):
        if setting.read_text().strip() != "1":
            setting.write_text("1")


def down() -> None:
    for family in ("ip", "ip6"):
        succeeds("nft", "delete", "table", family, "kube-proxy")
    succeeds("ip", "link", "del", BRIDGE)
