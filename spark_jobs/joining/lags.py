"""How far apart in time the events of both sides with equal keys are, and whether more are near each other than chance explains."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_jobs.joining.fields import ABSENT

# Neighbours in time that are looked at in each direction: with skewed clocks the partner is not the next one.
_NEIGHBOURS = 3
# Half the width of windows, ms: up to 8 hours and 9 minutes. Twice each is another one.
_WIDTHS = [least * 2**step for step in range(21) for least in (20, 28)]
# So many events show well enough how many lags there are of each length, whatever their keys.
_THINNED = 2_000
# What chance explains is not measured better than to this share: events of one key are not independent.
_UNSURE = 0.1
# A window has to hold more pairs than chance explains by so many standard deviations, and at least so many.
_SIGNIFICANT, _FEWEST = 5.0, 5
# Of what chance does not explain a peak has so much; all of it would have what a wide window has by chance.
_SETTLED, _NEARLY_ALL = 0.85, 0.985
# Chance cannot be measured about a window that is longer than such a part of the sample.
_PARTS = 6


class Events(NamedTuple):
    """Events of one side: the number of each one's key (ABSENT: none) and its time (epoch ms, ABSENT: none)."""

    key: np.ndarray
    at: np.ndarray

    def sound(self) -> Events:
        """Those with a key and a time."""
        is_sound = (self.key != ABSENT) & (self.at != ABSENT)
        return Events(self.key[is_sound], self.at[is_sound])


class Peak(NamedTuple):
    """Lags (right time − left time, ms) of equal keys that are no chance: those within `width` of `center`, both inclusive.

    `pairs`: how many pairs of events with equal keys have such a lag. `by_chance`: how many would by the lags around them.
    """

    center: int
    width: int
    pairs: int
    by_chance: float

    @property
    def excess(self) -> float:
        """Pairs that chance does not explain."""
        return self.pairs - self.by_chance

    @property
    def surely(self) -> float:
        """The excess that is left if chance does more than usual, and more than was measured."""
        return self.excess - 4 * float(np.sqrt(self.by_chance + 1)) - _UNSURE * self.by_chance

    @property
    def is_significant(self) -> bool:
        """Whether there are more than chance explains."""
        return self.excess >= max(_FEWEST, _SIGNIFICANT * float(np.sqrt(self.by_chance + 1)))


class Lags:
    """The lags of all pairs of a left and a right event with equal keys."""

    def __init__(self, left: Events, right: Events) -> None:
        left, right = left.sound(), right.sound()
        begin = min((int(side.at.min()) for side in (left, right) if len(side.at)), default=0)
        end = max((int(side.at.max()) for side in (left, right) if len(side.at)), default=0)
        self._widths = [width for width in _WIDTHS if width <= max((end - begin) // _PARTS, _WIDTHS[0])]
        # Keys are so far apart on one line with the times that no lag leads from one to another.
        self._apart = end - begin + 4 * _WIDTHS[-1]
        self.left, self.right = np.sort(self._line(left, begin)), np.sort(self._line(right, begin))
        self._left_at, self._right_at = np.sort(left.at[:: len(left.at) // _THINNED + 1]), np.sort(right.at)
        self._counts: dict[tuple[int, int], tuple[int, int]] = {}

    def _line(self, events: Events, begin: int) -> np.ndarray:
        return events.key * self._apart + (events.at - begin)

    def neighbours(self) -> np.ndarray:
        """The lags to the nearest right events of the same key, up to three before and three after each left one, ascending."""
        place, lags = np.searchsorted(self.right, self.left), []
        for step in range(-_NEIGHBOURS, _NEIGHBOURS):
            at = place + step
            there = (at >= 0) & (at < len(self.right))
            lag = self.right[at[there]] - self.left[there]
            lags.append(lag[np.abs(lag) <= _WIDTHS[-1]])
        return np.sort(np.concatenate(lags))

    def nearest(self, center: int) -> np.ndarray:
        """Of each left event that has any, the lag to the right event of the same key whose lag is nearest to `center`; at most the widest window."""
        place = np.searchsorted(self.right, self.left + center)
        best = np.full(len(self.left), self._apart)
        for at in (place - 1, place):
            there = (at >= 0) & (at < len(self.right))
            lag = np.where(there, self.right[np.clip(at, 0, max(len(self.right) - 1, 0))] - self.left, self._apart)
            best = np.where(np.abs(lag - center) < np.abs(best - center), lag, best)
        return best[np.abs(best) <= _WIDTHS[-1]]

    def peak(self) -> Peak | None:
        """The lags that are no chance; None if there are none."""
        lags = self.neighbours() if len(self.left) and len(self.right) else np.zeros(0, np.int64)
        if not len(lags):
            return None
        peaks = []
        for center in {_densest(lags, share) for share in (0.02, 0.1, 0.5)}:
            peak = self._settled(center)
            inside = lags[np.abs(lags - peak.center) <= peak.width]
            peaks.append(self._settled(int(np.median(inside))) if len(inside) else peak)
        return max(
            (peak for peak in peaks if peak.is_significant), key=lambda peak: (peak.surely, -peak.width), default=None
        )

    def _settled(self, center: int) -> Peak:
        """The narrowest window about the center that has most of what chance does not explain."""
        return _narrowest([self.window(center, width) for width in self._widths], _SETTLED)

    def whole(self, peak: Peak) -> Peak:
        """The peak, with its rare lags farther from the center, up to four times its width."""
        widths = [peak.width, *(width for width in self._widths if peak.width < width <= 4 * peak.width)]
        return _narrowest([self.window(peak.center, width) for width in widths], _NEARLY_ALL)

    def farthest(self, center: int) -> Peak:
        """The widest window about the center."""
        return self.window(center, self._widths[-1])

    def window(self, center: int, width: int) -> Peak:
        """The pairs within `width` of `center`.

        What chance explains is measured on both sides of it, as far again and much further; the larger counts. The lags of all events,
        whatever their keys, show how much more often lags are in the window than there: by the beginning and end of the sample, and by hours
        in which more happens.
        """
        pairs, every = self._within(center, width)
        by_chance = []
        for farther in (2 * width, max(2 * width, self._widths[-1])):
            more, all_more = self._within(center, farther)
            by_chance.append((more - pairs) * every / (all_more - every) if all_more > every else float(more - pairs))
        return Peak(center, width, pairs, max(by_chance))

    def _within(self, center: int, width: int) -> tuple[int, int]:
        """How many pairs of events with equal keys, and of (some of) all events, have a lag within `width` of `center`, inclusive."""
        if (center, width) not in self._counts:
            of_keys = _count(self.left, self.right, center - width, center + width)
            self._counts[center, width] = of_keys, _count(self._left_at, self._right_at, center - width, center + width)
        return self._counts[center, width]


def _narrowest(peaks: list[Peak], share: float) -> Peak:
    """Of windows that grow the first that has this share of what chance does not explain."""
    most = max(peak.surely for peak in peaks)
    return next(peak for peak in peaks if peak.surely >= most - (1 - share) * abs(most))


def _count(left: np.ndarray, right: np.ndarray, least: int, most: int) -> int:
    """How many differences of right and left ones, both ascending, are from `least` to `most`, both inclusive."""
    return int((np.searchsorted(right, left + most, "right") - np.searchsorted(right, left + least)).sum())


def _densest(lags: np.ndarray, share: float) -> int:
    """The middle of the shortest interval that holds this share of the lags, which ascend."""
    many = min(max(int(len(lags) * share), 5), len(lags))
    lengths = lags[many - 1 :] - lags[: len(lags) - many + 1]
    first = int(np.argmin(lengths))
    return int(np.median(lags[first : first + many]))
