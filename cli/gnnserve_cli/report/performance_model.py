"""Models of the time of a batch, from counts of bytes and operations: a published model, and a corrected one.

The published model (the paper's, below) is that of Dynamic GNN inference as-a-service, section 3.1. Its symbols:

    t        target nodes of a batch, `seeds`
    L        layers
    f_l      width of layer l's output; f_0 feature columns, f_L classes
    s_l      neighbours sampled per node in layer l. Layers count from the input, so targets draw s_L neighbours and
             these draw s_{L−1}: `fanouts`, which begins with the targets' draw, is (s_L, …, s_1)
    b_f      bytes per feature
    c        share of the sampled nodes that are distinct
    BW       bytes per second between where rows are kept and where they are computed with
    OPS      operations per second

**The paper's**, literally:

    N_l    = c · t · Π_{k=l+1..L} s_k
    T_comm = N_0 · f_0 · b_f / BW + t · f_L · b_f / BW
    T_comp = Σ_{l=1..L} N_l · (s_l · f_{l−1} + f_{l−1} · f_l + f_l) / OPS

Its example (t = 1024, L = 2, all f = 128, s = 25, c = 0.5, b_f = 4, BW = 30 GB/s) gives 5.461 ms, 0.375 ms and 0.0175
ms at 0.7 tera-operations per second; the paper prints 0.7 GFLOPS, with which computing would take 375 ms.

**Corrected** for what that model leaves out: all t targets are computed, not c · t of them; nodes read rows of their
own too; a multiply-add is two operations; GraphSAGE multiplies two matrices a layer, GIN two after each other and GCN
one; a batch has a cost that depends on no width (looking rows up, calling kernels). With the expected draws e_d of hop
d (e_1 = min(s_L, m) for nodes of m neighbours, …) and w_d = e_1 · … · e_d, w_0 = 1, a target needs

    rows with a hidden state   R = Σ_{d=0..L−1} w_d          1 + 25 = 26 for fan-outs 25, 10
    rows that are read         R + Σ_{d=1..L} w_d            26 + 275 = 301: of which 1 + 25 + 250 = 276 are the
                                                             distinct ones that would be copied to a device
    T_gather  = g_0 + t · rows read · row bytes / BW
    T_compute = o_0 + t · Σ_l R_l · (sums + products + activation) / OPS,    R_l = Σ_{d=0..L−l} w_d

gnnserve reads rows where they lie, so a row that is drawn twice is read twice, and sums them while it reads: the sums
of the first layer belong to T_gather. Neither model knows of sampling, queues or HTTP.

Rows and operations are counted in `gnnserve_api/operations.py`. All rates come from measurements, never from a data
sheet. `calibrate_*` raise CalibrationError, in words for a person, where the measurements contradict the model; nothing
negative or infinite is ever returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from gnnserve_api.operations import BatchShape

# --- the paper's model


@dataclass(frozen=True, slots=True)
class PaperTimes:
    transfer_ms: float
    compute_ms: float
    return_ms: float

    @property
    def window_ms(self) -> float:
        """What the paper measures as latency (section 4.2): from the start of the transfer to the end of computing."""
        return self.transfer_ms + self.compute_ms


def paper_bytes(shape: BatchShape, distinct_share: float, feature_bytes: float) -> float:
    """N_0 · f_0 · b_f."""
    return distinct_share * shape.bound_of(0) * shape.widths[0] * feature_bytes


def paper_operations(shape: BatchShape, distinct_share: float) -> float:
    """Σ_l N_l · (s_l · f_{l−1} + f_{l−1} · f_l + f_l)."""
    return sum(
        distinct_share * shape.bound_of(layer) * (shape.sampled_in(layer) * inputs + inputs * outputs + outputs)
        for layer, (inputs, outputs) in enumerate(pairwise(shape.widths), start=1)
    )


def paper_times(
    shape: BatchShape, distinct_share: float, feature_bytes: float, bytes_per_s: float, operations_per_s: float
) -> PaperTimes:
    returned = shape.seeds * shape.widths[-1] * feature_bytes
    return PaperTimes(
        transfer_ms=1e3 * paper_bytes(shape, distinct_share, feature_bytes) / bytes_per_s,
        compute_ms=1e3 * paper_operations(shape, distinct_share) / operations_per_s,
        return_ms=1e3 * returned / bytes_per_s,
    )


# --- the corrected model


@dataclass(frozen=True, slots=True)
class StageRates:
    """fixed_ms + amount / rate: one stage of the corrected model."""

    fixed_ms: float
    per_s: float | None
    """Bytes or operations per second; None: the stage takes the same whatever the amount."""

    def ms(self, amount: float) -> float:
        return self.fixed_ms + (0.0 if self.per_s is None else 1e3 * amount / self.per_s)


@dataclass(frozen=True, slots=True)
class CorrectedModel:
    gather: StageRates
    compute: StageRates
    notes: tuple[str, ...]
    """The measurements that did not fit the model, and what was done about them."""

    def window_ms(self, gathered_bytes: float, operations_: float) -> float:
        return self.gather.ms(gathered_bytes) + self.compute.ms(operations_)


# --- calibration


class CalibrationError(ValueError):
    """Two measurements that no rates explain, or too few of them; the text says which and why."""


@dataclass(frozen=True, slots=True)
class MeasuredVariant:
    """One variant at one batch size."""

    name: str
    gather_ms: float
    compute_ms: float
    window_ms: float
    """Gather and compute of the same run; medians of the two need not add up to it."""
    gathered_bytes: float
    operations: float
    """Operations as the model to be calibrated counts them."""


@dataclass(frozen=True, slots=True)
class PaperRates:
    bytes_per_s: float
    operations_per_s: float


def calibrate_paper(wide: MeasuredVariant, narrow: MeasuredVariant) -> PaperRates:
    """BW and OPS from two windows: with the paper's terms, which are proportional to bytes and to operations, two
    linear equations window = bytes / BW + operations / OPS."""
    determinant = wide.gathered_bytes * narrow.operations - narrow.gathered_bytes * wide.operations
    scale = max(wide.gathered_bytes * narrow.operations, narrow.gathered_bytes * wide.operations)
    if scale == 0 or abs(determinant) <= 1e-9 * scale:
        raise CalibrationError(
            f"bytes and operations of {wide.name} and {narrow.name} are in the same proportion, so their times cannot "
            "tell a bandwidth from an operation rate"
        )
    s_per_byte = 1e-3 * (wide.window_ms * narrow.operations - narrow.window_ms * wide.operations) / determinant
    s_per_operation = (
        1e-3 * (wide.gathered_bytes * narrow.window_ms - narrow.gathered_bytes * wide.window_ms) / determinant
    )
    for what, seconds, meaning in (
        (
            "bandwidth",
            s_per_byte,
            "without a fixed cost the model makes computing as slow as the narrow one needs, which leaves nothing for "
            "the transfer",
        ),
        ("operation rate", s_per_operation, "times grow at least as fast with columns as bytes do"),
    ):
        if seconds <= 0:
            came_out = "infinite" if seconds == 0 else "negative"
            raise CalibrationError(
                f"from the windows of {wide.name} and {narrow.name} the {what} comes out {came_out}: {meaning}"
            )
    return PaperRates(1 / s_per_byte, 1 / s_per_operation)


def paper_rates_of(one: MeasuredVariant) -> PaperRates:
    """BW and OPS from the two stages of one variant."""
    gather_ms, compute_ms = _stages(one)
    if gather_ms <= 0 or compute_ms <= 0:
        raise CalibrationError(f"a stage of {one.name} took no measurable time, so it has no rate")
    return PaperRates(1e3 * one.gathered_bytes / gather_ms, 1e3 * one.operations / compute_ms)


def _stages(one: MeasuredVariant) -> tuple[float, float]:
    """Gathering and computing, made to add up to the window: models are held against that, and medians need not."""
    both_ms = one.gather_ms + one.compute_ms
    if both_ms <= 0 or one.window_ms <= 0:
        return one.gather_ms, one.compute_ms
    scale = one.window_ms / both_ms
    return one.gather_ms * scale, one.compute_ms * scale


def calibrate_corrected(wide: MeasuredVariant, narrow: MeasuredVariant) -> CorrectedModel:
    """A rate and a fixed cost for each stage, from how each grew between the two measurements. Both windows come back
    exactly, unless a note says what was taken instead."""
    (wide_gather_ms, wide_compute_ms), (narrow_gather_ms, narrow_compute_ms) = _stages(wide), _stages(narrow)
    gather, about_gather = _calibrate_stage(
        "gathering", wide, narrow, (wide_gather_ms, narrow_gather_ms), (wide.gathered_bytes, narrow.gathered_bytes)
    )
    compute, about_compute = _calibrate_stage(
        "computing", wide, narrow, (wide_compute_ms, narrow_compute_ms), (wide.operations, narrow.operations)
    )
    return CorrectedModel(gather, compute, (*about_gather, *about_compute))


def _calibrate_stage(
    what: str,
    wide: MeasuredVariant,
    narrow: MeasuredVariant,
    times_ms: tuple[float, float],
    amounts: tuple[float, float],
) -> tuple[StageRates, tuple[str, ...]]:
    (wide_ms, narrow_ms), (wide_amount, narrow_amount) = times_ms, amounts
    more = wide_amount - narrow_amount
    if more <= 0:
        raise CalibrationError(
            f"{wide.name} and {narrow.name} differ in nothing that {what} depends on; two widths are needed"
        )
    rise_ms = wide_ms - narrow_ms
    if rise_ms <= 0:
        mean_ms = (wide_ms + narrow_ms) / 2
        note = (
            f"{what} takes no longer in {wide.name} than in {narrow.name}, so no rate can be told from them: it is "
            f"taken to be {mean_ms:.3g} ms at every width"
        )
        return StageRates(mean_ms, None), (note,)
    fixed_ms = narrow_ms - rise_ms * narrow_amount / more
    if fixed_ms < 0:
        note = (
            f"{what} grows faster than in proportion from {narrow.name} to {wide.name}, which would make its fixed "
            f"cost negative: it is taken to be 0, and the rate is that of {wide.name}"
        )
        return StageRates(0.0, 1e3 * wide_amount / wide_ms), (note,)
    return StageRates(fixed_ms, 1e3 * more / rise_ms), ()
