"""The fields of the depth experiment: teacher, student, target (arXiv 2602.05970, sec. 4 and app. C)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

from .fields import choice, integer, real, reference, refuse
from .run_config import RunConfig, fill, word


@dataclass(frozen=True)
class Teacher:
    """The fixed residual network that makes targets (arXiv 2602.05970, app. C)."""

    kind: str = reference("independent", "independent", "tied", "blocks", "mixed")
    depth: int = integer(64, 1, 100_000)
    width: int = integer(16, 1, 65_536)
    hidden: int | None = integer(None, 1, 1_000_000)  # resolved: 4 x width
    seed: int | None = integer(None, 0, 2**32 - 1)  # resolved: the run's seed
    block_size: int = integer(8, 1)
    rho: float = real(0.5, 0.0, 1.0)
    scale: float = real(1.0, 0.0)
    head_init: str = choice("linear", "linear", "normal")


@dataclass(frozen=True)
class Student:
    """The trained residual network.

    `init=grow`: a student of depth `grow_from` is trained from zero, then every layer is split into two half steps and
    training goes on at twice the depth and `grow_rate` times the rate, until `depth` is reached; `train.steps` are
    those of each stage.
    """

    depth: int = integer(8, 1, 100_000)
    hidden: int | None = integer(None, 1, 1_000_000)  # resolved: the teacher's
    scheme: str = choice("euler", "euler", "midpoint", "rk4")
    init: str = choice("zero", "zero", "grow")
    grow_from: int = integer(2, 1, 100_000)
    grow_rate: float = real(0.3, 0.0, open_low=True)
    block: str = reference("published", "published")


@dataclass(frozen=True)
class Target:
    """What the student matches: the teacher's final state (mse) or its softmax at a temperature (kl)."""

    loss: str = choice("mse", "kl", "mse")
    temperature: float = real(1.0, 0.0, open_low=True)
    head: str = choice("learned", "learned", "teacher")
    student_temperature: str | None = choice(None, "one", "teacher")  # resolved: `teacher` iff the head is given
    vocab: int = integer(128, 2, 10_000_000)


@dataclass(frozen=True)
class DepthConfig(RunConfig):
    """`problem=depth`: a student imitates a deep residual teacher (arXiv 2602.05970, sec. 4 and app. C)."""

    size: ClassVar[str | None] = "student.depth"

    teacher: Teacher = field(default_factory=Teacher)
    student: Student = field(default_factory=Student)
    target: Target = field(default_factory=Target)

    def unused(self) -> set[str]:
        unused = super().unused()
        if self.teacher.kind != "blocks":
            unused.add("teacher.block_size")
        if self.teacher.kind != "mixed":
            unused.add("teacher.rho")
        if ":" in self.teacher.kind:
            unused.add("teacher.scale")
        if self.student.init != "grow":
            unused |= {"student.grow_from", "student.grow_rate"}
        if self.target.loss == "mse":
            unused |= {"teacher.head_init"} | {
                f"target.{name}" for name in ("temperature", "head", "student_temperature", "vocab")
            }
        return unused

    def check(self) -> None:
        super().check()
        student = self.student
        if student.init == "grow":
            reached = [student.grow_from * 2**doublings for doublings in range(18)]
            if student.depth not in reached:
                near = ", ".join(str(depth) for depth in reached if depth <= max(4 * student.depth, 8 * reached[0]))
                refuse(
                    "student.depth", student.depth, f"{near} with student.init=grow and student.grow_from={reached[0]}"
                )
            if student.block != "published":
                refuse("student.init", "grow", "zero with a block of your own, which toydepth cannot split")
        if self.target.loss == "mse" and self.target.head == "teacher":
            refuse("target.head", "teacher", "learned with target.loss=mse (states have no head), or target.loss=kl")

    def complete(self, platform: str) -> DepthConfig:
        config = super().complete(platform)
        assert isinstance(config, DepthConfig)
        teacher = fill(config.teacher, hidden=4 * config.teacher.width, seed=config.seed)
        temperature = "teacher" if config.target.head == "teacher" else "one"
        return dataclasses.replace(
            config,
            teacher=teacher,
            student=fill(config.student, hidden=teacher.hidden),
            target=fill(config.target, student_temperature=temperature),
        )

    def rate_scale(self) -> float:
        grown = self.student.grow_rate if self.parent() else 1.0
        return grown * self.student.depth**-self.optimizer.depth_power

    def grows(self) -> bool:
        return self.student.init == "grow"

    def parent(self) -> DepthConfig | None:
        student = self.student
        if student.init != "grow" or student.depth == student.grow_from:
            return None
        return dataclasses.replace(self, student=dataclasses.replace(student, depth=student.depth // 2))

    def slug(self) -> list[str]:
        loss = [self.target.loss] if self.target.loss == "mse" else ["kl", f"T{self.target.temperature:.4g}"]
        shape = [] if self.student.scheme == "euler" else [self.student.scheme]
        shape += [] if self.student.init == "zero" else [self.student.init]
        shape += [] if self.student.block == "published" else [word(self.student.block)]
        return [word(self.teacher.kind), *shape, f"d{self.student.depth}", *loss, f"s{self.seed}"]
