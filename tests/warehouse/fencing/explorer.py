"""All interleavings of writers, with errors, lost answers, kills and jumps of clocks at each of their requests.

A writer is a function that asks the store. What it does next follows from the answers so far, so a writer is known by
its answers: to see its next request, it is run again with them, until it asks for more. States that are reached on
several ways (the same store, the same answers) are looked at once, so the search ends without leaving anything out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from schemas.errors import AggregatorError
from tests.warehouse.fencing.model import Ask, Request, World, done

Program = Callable[[Ask, str], None]
"""Runs a writer to its end; it is given a name of its own."""

ERROR, KILLED = "error", "killed"


class Asked(BaseException):
    """A writer asks for something whose answer is not given yet."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.request = request


@dataclass(frozen=True)
class Trouble:
    """How much goes wrong on one way, all writers together."""

    errors: int = 0
    """Requests that fail, done or not."""
    kills: int = 0
    jumps: int = 0
    """Of clocks, of the writers' and of the store's."""
    starts: int = 0
    """How often a writer that ended is started again."""


@dataclass(frozen=True)
class Writer:
    """One process: its name, how often it was started, and the number of its answers in the explorer's books."""

    number: int
    start: int = 0
    answers: int = 0
    is_over: bool = False


@dataclass
class Explorer:
    """Looks at all states that writers can reach."""

    program: Program
    check: Callable[[World], None]
    """Called with each state of the store, once."""
    states: int = 0
    worlds: list[World] = field(default_factory=list)
    ends: set[str] = field(default_factory=set)
    _world_numbers: dict[World, int] = field(default_factory=dict)
    _done: dict[tuple[int, Request], tuple[int, Any]] = field(default_factory=dict)
    _answers: list[tuple[Any, ...]] = field(default_factory=lambda: [()])
    _numbers: dict[tuple[int, Any], int] = field(default_factory=dict)
    _next: dict[tuple[str, int], Request | str] = field(default_factory=dict)

    def explore(self, world: World, writers: int, trouble: Trouble) -> None:
        """Look at all states that a number of writers can reach from one state of the store."""
        first = (self._number(world), tuple(Writer(n) for n in range(writers)), trouble)
        seen, todo = {first}, [first]
        while todo:
            state = todo.pop()
            self.states += 1
            for following in self._following(*state):
                if following not in seen:
                    seen.add(following)
                    todo.append(following)

    def _number(self, world: World) -> int:
        """Return the number of a state of the store, which is checked where it is new."""
        if world not in self._world_numbers:
            self.check(world)
            self._world_numbers[world] = len(self.worlds)
            self.worlds.append(world)
        return self._world_numbers[world]

    def _asked(self, world: int, request: Request) -> tuple[int, Any]:
        key = (world, request)
        if key not in self._done:
            after, answer = done(self.worlds[world], request)
            self._done[key] = (self._number(after), answer)
        return self._done[key]

    def _following(
        self, world: int, writers: tuple[Writer, ...], trouble: Trouble
    ) -> Iterator[tuple[int, tuple[Writer, ...], Trouble]]:
        for index, writer in enumerate(writers):
            for after, one, left in self._steps(world, writer, trouble):
                yield after, (*writers[:index], one, *writers[index + 1 :]), left

    def _steps(self, world: int, writer: Writer, trouble: Trouble) -> Iterator[tuple[int, Writer, Trouble]]:
        if writer.is_over:
            if trouble.starts:
                yield (
                    world,
                    Writer(writer.number, writer.start + 1),
                    replace(trouble, starts=trouble.starts - 1),
                )
            return
        request = self._next_of(writer)
        if isinstance(request, str):
            yield world, replace(writer, is_over=True), trouble
            return
        if trouble.kills:
            yield world, replace(writer, is_over=True), replace(trouble, kills=trouble.kills - 1)
        if request.kind in ("clock", "now"):
            last = max((a for a in self._answers[writer.answers] if isinstance(a, float)), default=0.0)
            yield world, self._answered(writer, last if request.kind == "clock" else 0.0), trouble
            if trouble.jumps:
                later = last + 1000.0
                yield world, self._answered(writer, later), replace(trouble, jumps=trouble.jumps - 1)
            return
        after, answer = self._asked(world, request)
        yield after, self._answered(writer, answer), trouble
        if trouble.errors:
            failed, left = self._answered(writer, ERROR), replace(trouble, errors=trouble.errors - 1)
            yield world, failed, left
            if after != world:
                yield after, failed, left

    def _answered(self, writer: Writer, answer: Any) -> Writer:
        key = (writer.answers, answer)
        if key not in self._numbers:
            self._numbers[key] = len(self._answers)
            self._answers.append((*self._answers[writer.answers], answer))
        return replace(writer, answers=self._numbers[key])

    def _next_of(self, writer: Writer) -> Request | str:
        name = f"writer {writer.number}.{writer.start}"
        key = (name, writer.answers)
        if key not in self._next:
            self._next[key] = self._run(name, self._answers[writer.answers])
        return self._next[key]

    def _run(self, name: str, answers: tuple[Any, ...]) -> Request | str:
        given = iter(answers)

        def ask(request: Request) -> Any:
            for answer in given:
                if answer == ERROR:
                    raise OSError("the store did not answer")
                return answer
            raise Asked(request)

        try:
            self.program(ask, name)
        except Asked as asked:
            return asked.request
        except (AggregatorError, OSError) as error:
            self.ends.add(str(error))
            return str(error)
        return "done"


def run_alone(world: World, program: Program, name: str) -> World:
    """Return the store after one writer that nobody disturbs, when all leases have ended."""

    def ask(request: Request) -> Any:
        nonlocal world
        if request.kind in ("clock", "now"):
            return 1e9
        world, answer = done(world, request)
        return answer

    program(ask, name)
    return world
