"""Writes nodes.csv and edges.csv: 1,500 accounts, and which transferred money to which.

One account in five is fraudulent: a member of a ring, or a mule. Its own figures are a little unusual, which tells
little. The members of a ring transfer to each other and to mules, so its neighbours tell more. The same seed writes the
same files.
"""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

SEED = 18
ACCOUNTS = 1_500
RINGS, MEMBERS, MULES = 40, 6, 60
SHOPS = 60
COLUMNS = ("account", "ageDays", "transfersPerDay", "meanAmount", "chargebacks", "nightShare", "label", "split")


def make(folder: Path) -> None:
    rng = random.Random(SEED)  # noqa: S311  (repeatable data, no secret)
    accounts = [f"acct-{number:04}" for number in range(ACCOUNTS)]
    shuffled = rng.sample(accounts, ACCOUNTS)
    rings = [shuffled[ring * MEMBERS : (ring + 1) * MEMBERS] for ring in range(RINGS)]
    mules = shuffled[RINGS * MEMBERS : RINGS * MEMBERS + MULES]
    legitimate = shuffled[RINGS * MEMBERS + MULES :]
    fraudulent = {*mules, *(member for ring in rings for member in ring)}
    with (folder / "nodes.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for account in accounts:
            is_fraud = account in fraudulent
            label = "fraud" if is_fraud else "legitimate"
            split = rng.choices(("train", "validation", "test"), (60, 20, 20))[0]
            table.writerow([account, *features(rng, is_fraud), label, split])
    with (folder / "edges.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("payer", "payee"))
        table.writerows(sorted(transfers(rng, rings, mules, legitimate)))


def features(rng: random.Random, is_fraud: bool) -> tuple[float, ...]:
    """The figures of an account. Fraud moves each of them by about half a standard deviation."""
    shift = 0.5 * is_fraud
    age_days = round(500 * math.exp(rng.gauss(-shift, 1)))
    transfers_per_day = round(math.exp(rng.gauss(0.7 * shift, 0.7)), 2)
    mean_amount = round(80 * math.exp(rng.gauss(0.8 * shift, 0.8)), 2)
    chargebacks = sum(rng.random() < 0.1 + 0.2 * shift for _ in range(5))
    night_share = round(min(1, max(0, rng.gauss(0.2 + 0.1 * shift, 0.1))), 2)
    return age_days, transfers_per_day, mean_amount, chargebacks, night_share


def transfers(
    rng: random.Random, rings: list[list[str]], mules: list[str], legitimate: list[str]
) -> set[tuple[str, str]]:
    """Payer and payee of each transfer."""
    shops = legitimate[:SHOPS]
    made = {(payer, payee) for payer in legitimate for payee in (*rng.sample(legitimate, 3), rng.choice(shops))}
    for number, ring in enumerate(rings):
        used = [mules[(3 * number + mule) % MULES] for mule in range(3)]  # two rings share a mule
        victims = rng.sample(legitimate, 3)
        for member in ring:
            made |= {(member, other) for other in rng.sample(ring, 3)}
            made |= {(member, mule) for mule in rng.sample(used, 2)}
            made |= {(member, rng.choice(shops)), (rng.choice(victims), member)}
    return {(payer, payee) for payer, payee in made if payer != payee}


if __name__ == "__main__":
    make(Path(__file__).parent)
