"""From scores to probabilities: a logistic curve, fitted on validation links and as many pairs without one.

Platt, *Probabilistic outputs for support vector machines*, with his targets that keep the fit from growing without end
where scores separate the two perfectly. A probability is that of a link among as many links as other pairs.
"""

from __future__ import annotations

import numpy as np

from gnnserve_api.files.links import LinkCalibration

_STEPS = 100
_TOLERANCE = 1e-10


def fit_calibration(of_links: np.ndarray, of_others: np.ndarray) -> LinkCalibration:
    """Scores float32 of links and of other pairs. Newton's method on the mean negative log-likelihood, in units of the
    scores' own deviation; the slope is never below 0, so that a higher score is never less likely."""
    scores = np.concatenate([of_links, of_others]).astype(np.float64)
    of_link, of_other = (len(of_links) + 1) / (len(of_links) + 2), 1 / (len(of_others) + 2)
    wanted = np.repeat([of_link, of_other], [len(of_links), len(of_others)])
    middle, deviation = float(scores.mean()), float(scores.std())
    if deviation == 0:
        return LinkCalibration(slope=0.0, intercept=_logit(float(wanted.mean())))
    inputs = np.stack([(scores - middle) / deviation, np.ones(len(scores))])
    found = np.array([0.0, _logit(float(wanted.mean()))])
    for _ in range(_STEPS):
        expected = 0.5 * (1 + np.tanh(0.5 * (found @ inputs)))
        slope = inputs @ (expected - wanted)
        curvature = (inputs * (expected * (1 - expected))) @ inputs.T + 1e-9 * np.eye(2) * len(scores)
        step = np.linalg.solve(curvature, slope)
        # Far from the minimum a whole step may lead further away.
        found = found - step * min(1.0, 2.0 / max(1e-12, float(np.abs(step).max())))
        if float(np.abs(step).max()) < _TOLERANCE:
            break
    if found[0] <= 0:
        return LinkCalibration(slope=0.0, intercept=_logit(float(wanted.mean())))
    return LinkCalibration(slope=float(found[0] / deviation), intercept=float(found[1] - found[0] * middle / deviation))


def _logit(share: float) -> float:
    return float(np.log(share / (1 - share)))
