from array import array
from collections.abc import Iterable


class TokenCounts:
    """Distinct tokens of a row, with counts in the answer, for penalties."""

    def __init__(self, prompt: Iterable[int], generated: Iterable[int]) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        self.tokens = array("q", self._places)
        self.counts = array("f", [0.0]) * len(self.tokens)
        for token in generated:
            self.add(token)

    def add(self, token: int) -> None:
        place = self._places.setdefault(token, len(self.tokens))
        if place == len(self.tokens):
            self.tokens.append(token)
            self.counts.append(0.0)
        self.counts[place] += 1
