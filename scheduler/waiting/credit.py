"""What work out of turn is paid with, in tokens of work."""

from dataclasses import dataclass


@dataclass(slots=True)
class Credit:
    earned: float  # by a token of work in turn
    amount: float = 0.0
    most: float = 0.0
    aside: float = 0.0  # of the amount, for promises that may go first

    @property
    def free(self) -> float:
        return self.amount - self.aside

    def book(self, in_turn: bool, work: float) -> None:
        self.amount = min(self.amount + (self.earned * work if in_turn else -work), self.most)

    def jump(self, work: float, first: bool) -> None:
        self.amount -= work
        self.aside -= work * first

    def take_turn(self, place: float, work: float, first: bool) -> None:
        """`work` in a place of that much."""
        self.amount = min(self.amount + self.earned * place + (place - work), self.most)
        self.aside -= work * first

    def lend(self, place: float) -> None:
        self.amount += self.worth(place)

    def worth(self, place: float) -> float:
        return (1 + self.earned) * place
