"""Speed that follows what workers report: least squares with forgetting, around a prior.

Where decode has a curve, its form stays: one factor and one offset of it are learnt. Each row pulls the coefficients by
its *relative* error; old rows fade; a row that is far off pulls no harder than a moderately wrong one (Huber), unless
those before it say the same. What the rows do not say (all of one batch size, say) stays with the prior, after one
factor for all its coefficients: a machine that is twice as slow as thought is likely so in everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import msgspec

from fulcrum.api.worker import SpeedCoefficients
from fulcrum.capacity.decode_curve import LEAST_SECONDS, decode_step_seconds, scaled
from fulcrum.capacity.nonnegative import minimise_quadratic
from fulcrum.capacity.rows import DecodeRow, PrefillRow
from fulcrum.capacity.speed import TYPICAL_BATCH, TYPICAL_TOKENS, SpeedSource

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORGETTING: Final = 0.96
"""Weight of a row against the next one of its kind: 25 rows are remembered."""
NOISE: Final = 0.1
"""Relative error of a usual row."""
_HUBER: Final = 2.0
"""Errors beyond this many usual ones pull no harder."""
_SHORT_MEMORY: Final = 0.8
"""Of the usual error, and of rows once the truth has changed: 5 rows are remembered."""
_DRIFT_MEMORY: Final = 0.7
"""Of the side that rows are off to: four that are far off to one side (1 - 0.7^4 of the most) are a changed truth."""

TRUST: Final = {SpeedSource.ROOFLINE: 1.0, SpeedSource.PROFILE: 2.0, SpeedSource.MEASURED: 2.0}
"""How firmly a prior holds against rows, by where it comes from."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Fit:
    """Non-negative coefficients, as shares of a typical step, and the rows so far as a quadratic."""

    unit: NDArray[np.float64]
    """Coefficient = share * unit."""
    prior: NDArray[np.float64]
    """Shares that the prior has."""
    trust: float
    information: NDArray[np.float64]
    """Faded sum of x x^T over rows."""
    evidence: NDArray[np.float64]
    """Faded sum of x y over rows."""
    shares: NDArray[np.float64]
    error: float
    """Usual relative error of a row."""
    drift: float = 0.0
    """Faded mean of the side that rows are off to, -1 to 1."""
    rows: int = 0

    @classmethod
    def start(cls, coefficients: tuple[float, ...], typical: tuple[float, ...], trust: float) -> Self:
        import numpy as np

        features = np.asarray(typical)
        contributions = np.maximum(np.asarray(coefficients), 0.0) * features
        whole = max(float(contributions.sum()), LEAST_SECONDS)
        shares = contributions / whole
        return cls(
            unit=whole / features,
            prior=shares,
            trust=trust,
            information=np.zeros((len(typical), len(typical))),
            evidence=np.zeros(len(typical)),
            shares=shares,
            error=NOISE,
        )

    @property
    def coefficients(self) -> tuple[float, ...]:
        return tuple(float(each) for each in self.shares * self.unit)

    @property
    def confidence(self) -> float:
        """Share of what the coefficients say that comes from rows and not from the prior, 0 to 1."""
        import numpy as np

        # The trace of (information + held)^-1 held, by eigenvalues: the sum may be singular to the last digit.
        _, held = self.scaled_prior()
        spread = 1 / np.sqrt(np.diag(held))
        gained = np.linalg.eigvalsh(self.information * np.outer(spread, spread))
        return float(1.0 - np.mean(1 / (1 + np.maximum(gained, 0.0))))

    def scaled_prior(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The prior times the factor that fits the rows best, and how firmly it holds (inverse of its covariance)."""
        import numpy as np

        # The factor for all coefficients is 1 give or take 1, and in a prior of trust 1 each coefficient is off by all
        # of it; one that the prior has as zero could still make up a twentieth of a typical step.
        agreeing = max(float(self.prior @ self.evidence), 0.0)
        factor = (agreeing + 1) / (float(self.prior @ self.information @ self.prior) + 1)
        deviation = factor * np.maximum(self.prior, 0.05)
        return factor * self.prior, np.diag(self.trust / deviation**2)

    def updated(self, features: tuple[float, ...], seconds: float, forgetting: float) -> Self:
        import numpy as np

        expected = max(float(np.asarray(features) @ (self.shares * self.unit)), LEAST_SECONDS)
        row = np.asarray(features) * self.unit / expected
        target = seconds / expected
        off = abs(target - 1.0)
        usual = max(self.error, NOISE)
        # A row that is off by four times the usual noise counts fully as one to its side.
        side = max(-1.0, min(1.0, (target - 1.0) / (4 * NOISE)))
        drift = _DRIFT_MEMORY * self.drift + (1 - _DRIFT_MEMORY) * side
        if abs(drift) > 0.75:
            # No outliers any more: the rows of before fade, and only errors of one and a half are held back.
            most, forgetting = 1.5, min(forgetting, _SHORT_MEMORY)
        else:
            most = _HUBER * usual
        weight = (most / off if off > most else 1.0) / NOISE**2
        learnt = dataclasses.replace(
            self,
            information=forgetting * self.information + weight * np.outer(row, row),
            evidence=forgetting * self.evidence + weight * target * row,
        )
        prior, held = learnt.scaled_prior()
        shares = minimise_quadratic(learnt.information + held, learnt.evidence + held @ prior)
        # An outlier counts as three usual errors, so that one alone does not open the door.
        seen = min(off, 3 * usual)
        return dataclasses.replace(
            learnt,
            shares=shares,
            drift=drift,
            error=_SHORT_MEMORY * self.error + (1 - _SHORT_MEMORY) * seen,
            rows=self.rows + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OnlineSpeed:
    """Coefficients of a worker, or of a pool of alike ones, that follow reported rows. A value that updates replace."""

    _prior: SpeedCoefficients
    _prefill: _Fit
    _decode: _Fit
    """Of a curve: its offset and its factor; else the three coefficients of the line."""
    _forgetting: float

    @classmethod
    def start(cls, prior: SpeedCoefficients, *, trust: float = 1.0, forgetting: float = FORGETTING) -> Self:
        """Begins at a roofline, a profile or what was measured at start; `TRUST` has a weight for each.

        Raises:
            ValueError: trust is not positive, or forgetting not in (0, 1].
        """
        if not trust > 0 or not 0 < forgetting <= 1:
            raise ValueError("trust must be positive, and forgetting above 0 and at most 1")
        # Typical steps, in which a coefficient's share says how much it matters.
        prompt = (1.0, TYPICAL_TOKENS, TYPICAL_TOKENS**2)
        batch, context = TYPICAL_BATCH, TYPICAL_BATCH * TYPICAL_TOKENS
        if prior.decode_curve:
            decode = _Fit.start((0.0, 1.0), (1.0, decode_step_seconds(prior, batch, context)), trust)
        else:
            decode = _Fit.start((prior.decode_a, prior.decode_b, prior.decode_c), (1.0, batch, context), trust)
        return cls(
            _prior=prior,
            _prefill=_Fit.start((prior.prefill_a, prior.prefill_b, prior.prefill_c), prompt, trust),
            _decode=decode,
            _forgetting=forgetting,
        )

    def updated(self, rows: Iterable[PrefillRow | DecodeRow]) -> Self:
        """The same with these rows learnt, in order. Rows with impossible numbers are passed over."""
        prefill, decode = self._prefill, self._decode
        for row in rows:
            if not row.usable:
                continue
            if isinstance(row, PrefillRow):
                prefill = prefill.updated(row.features, row.seconds, self._forgetting)
            else:
                features: tuple[float, ...] = row.features
                if self._prior.decode_curve:
                    features = (1.0, decode_step_seconds(self._prior, row.batch, row.context_tokens))
                decode = decode.updated(features, row.seconds_per_step, self._forgetting)
        return dataclasses.replace(self, _prefill=prefill, _decode=decode)

    @property
    def coefficients(self) -> SpeedCoefficients:
        """What is known now; never negative."""
        prefill, decode = self._prefill.coefficients, self._decode.coefficients
        if not self._prior.decode_curve:
            return SpeedCoefficients.of(prefill=prefill, decode=decode)
        offset, factor = decode
        names = ("prefill_a", "prefill_b", "prefill_c")
        moved = scaled(self._prior, factor=factor, offset_seconds=offset)
        return msgspec.structs.replace(moved, **dict(zip(names, prefill, strict=True)))

    @property
    def confidence(self) -> float:
        """How far the coefficients rest on rows: 0 only on the prior, towards 1 all six on rows. The lesser of both."""
        return min(self._prefill.confidence, self._decode.confidence)

    @property
    def prefill_rows(self) -> int:
        """Prefill rows learnt so far."""
        return self._prefill.rows

    @property
    def decode_rows(self) -> int:
        """Decode rows learnt so far."""
        return self._decode.rows
