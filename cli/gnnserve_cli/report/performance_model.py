"""The time that a batch should take, from counts of bytes and operations.

The model is that of Dynamic GNN inference as-a-service, section 3.1, corrected for what it leaves out: all target nodes
are computed, and not only distinct ones; nodes read rows of their own too; a multiply-add is two operations; GraphSAGE
multiplies two matrices a layer, GIN two after each other and GCN one; a batch has a cost that depends on no width
(looking rows up, calling kernels). Its symbols:

    t        target nodes of a batch, `seeds`
    L        layers
    s_l      neighbours sampled per node in layer l. Layers count from the input, so targets draw s_L neighbours and
             these draw s_{L−1}: `fanouts`, which begins with the targets' draw, is (s_L, …, s_1)
    BW       bytes per second between where rows are kept and where they are computed with
    OPS      operations per second

With the expected draws e_d of hop d (e_1 = min(s_L, m) for nodes of m neighbours, …) and w_d = e_1 · … · e_d, w_0 = 1,
a target needs

    rows with a hidden state   R = Σ_{d=0..L−1} w_d          1 + 25 = 26 for fan-outs 25, 10
    rows that are read         R + Σ_{d=1..L} w_d            26 + 275 = 301: of which 1 + 25 + 250 = 276 are the
                                                             distinct ones that would be copied to a device
    T_gather  = g_0 + t · rows read · row bytes / BW
    T_compute = o_0 + t · Σ_l R_l · (sums + products + activation) / OPS,    R_l = Σ_{d=0..L−l} w_d

gnnserve reads rows where they lie, so a row that is drawn twice is read twice, and sums them while it reads: the sums
of the first layer belong to T_gather. The model knows nothing of sampling, queues or HTTP.

Rows and operations are counted in `gnnserve_api/operations.py`. All rates come from measurements, never from a data
sheet. `calibrate` raises CalibrationError, in words for a person, where the measurements contradict the model; nothing
negative or infinite is ever returned.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageRates:
    """fixed_ms + amount / rate: one stage of the model."""

    fixed_ms: float
    per_s: float | None
    """Bytes or operations per second; None: the stage takes the same whatever the amount."""

    def ms(self, amount: float) -> float:
        return self.fixed_ms + (0.0 if self.per_s is None else 1e3 * amount / self.per_s)


@dataclass(frozen=True, slots=True)
class PerformanceModel:
    gather: StageRates
    compute: StageRates
    notes: tuple[str, ...]
    """The measurements that did not fit the model, and what was done about them."""

    def window_ms(self, gathered_bytes: float, operations_: float) -> float:
        """Gathering and computing, without sampling."""
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


def _stages(one: MeasuredVariant) -> tuple[float, float]:
    """Gathering and computing, made to add up to the window: models are held against that, and medians need not."""
    both_ms = one.gather_ms + one.compute_ms
    if both_ms <= 0 or one.window_ms <= 0:
        return one.gather_ms, one.compute_ms
    scale = one.window_ms / both_ms
    return one.gather_ms * scale, one.compute_ms * scale


def calibrate(wide: MeasuredVariant, narrow: MeasuredVariant) -> PerformanceModel:
    """A rate and a fixed cost for each stage, from how each grew between the two measurements. Both windows come back
    exactly, unless a note says what was taken instead."""
    (wide_gather_ms, wide_compute_ms), (narrow_gather_ms, narrow_compute_ms) = _stages(wide), _stages(narrow)
    gather, about_gather = _calibrate_stage(
        "gathering", wide, narrow, (wide_gather_ms, narrow_gather_ms), (wide.gathered_bytes, narrow.gathered_bytes)
    )
    compute, about_compute = _calibrate_stage(
        "computing", wide, narrow, (wide_compute_ms, narrow_compute_ms), (wide.operations, narrow.operations)
    )
    return PerformanceModel(gather, compute, (*about_gather, *about_compute))


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
