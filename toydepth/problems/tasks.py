"""The rare-task experiment: many regression tasks share one narrow linear encoder (arXiv 2605.29548, sec. 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..config import TasksConfig
from ..theory.tasks import common_tasks
from . import UNSCHEDULED, Problem, Seen, Stream

Tree = Any


@dataclass(frozen=True)
class TaskStream(Stream):
    """Inputs x ~ N(0, I) and the task of each, or in place of a sample the frequencies of all tasks.

    A task that is withheld comes in every `gap`-th batch only, from the first one on, in as many samples as in `gap`
    batches of the mixture (rounded at random, so that their long-run frequencies are equal).

    Attributes:
        batch: samples of a batch; 0: exact expectations.
    """

    count: int
    features: int
    inputs: int
    batch: int

    def init(self, source: Tree) -> Tree:
        return source

    def draw(self, fixed: Tree, key: PRNGKeyArray) -> Tree:
        """The mixture: {weights: [count]} of all tasks, or {task: [batch], inputs: [batch, inputs]}."""
        return self.scheduled(fixed, key, UNSCHEDULED)

    def scheduled(self, fixed: Tree, key: PRNGKeyArray, step: Any) -> Tree:
        """The same with `rare` withheld, or returned, where there is a gap."""
        pi, rare, gap = fixed["frequencies"], fixed["rare"], fixed["gap"]
        withheld = (gap > 0) & (step != UNSCHEDULED)
        weights = jnp.where(withheld, pi * (1.0 - rare) / jnp.sum(pi * (1.0 - rare)), pi)
        due = withheld & (step % jnp.maximum(gap, 1) == 0)
        share = jnp.where(due, gap * jnp.sum(pi * rare), 0.0)  # of the batch, for what is returned
        if not self.batch:
            return {"weights": (1.0 - share) * weights + share * rare}
        which, places = jax.random.split(key)
        at, rounding = jnp.split(jax.random.uniform(which, (self.batch + 1,)), [self.batch])
        summed = jnp.cumsum(weights)
        task = jnp.minimum(jnp.searchsorted(summed, at * summed[-1], side="right"), self.count - 1)
        returned = jnp.floor(share * self.batch + rounding)
        task = jnp.where(jnp.arange(self.batch) < returned, jnp.argmax(rare), task)
        return {"task": task.astype(jnp.int32), "inputs": jax.random.normal(places, (self.batch, self.inputs))}

    def context(self, fixed: Tree) -> Tree:
        """Frequencies, amplitudes, and which tasks are common and which is rare."""
        return {name: fixed[name] for name in ("frequencies", "amplitudes", "common", "rare")}

    def flops(self) -> float:
        """About as many as random numbers take."""
        return 50.0 * self.batch * self.inputs + 10.0 * self.count


@dataclass(frozen=True)
class TasksProblem(Problem):
    """Decoder k is to make the features of task k, y_k = A_k x, of what the encoder W makes of x.

    The loss is E ||y_k - D_k W x||^2 over tasks and inputs, which is sum_k pi_k ||A_k - D_k W||^2.
    """

    stream: TaskStream
    width: int

    def label(self) -> str:
        s = self.stream
        return f"{s.count} tasks of {s.features}, width {self.width}" + (f", batch {s.batch}" if s.batch else "")

    def init(self, key: PRNGKeyArray) -> Tree:
        """W[width, inputs] with orthonormal rows, D[count, features, width] uniform in +-sqrt(3 / width)."""
        s, shape = self.stream, (self.stream.count, self.stream.features, self.width)
        drawn = jax.random.normal(key, (s.inputs * self.width + math.prod(shape),))  # at once, to compile half as long
        rows, maps = jnp.split(drawn, [s.inputs * self.width])
        uniform = jax.lax.erf(maps.reshape(shape) * math.sqrt(0.5))
        return {"W": orthonormal(rows.reshape(self.width, s.inputs)), "D": math.sqrt(3.0 / self.width) * uniform}

    def predict(self, params: Tree, batch: Tree, context: Tree, hyper: Tree) -> Float[Array, "batch ..."]:
        """D_k W x of every sample [batch, features]; or, the one sample of exact expectations, all sqrt(pi_k) D_k W
        [1, count features, inputs]."""
        s, W, D = self.stream, params["W"], params["D"]
        if not s.batch:
            return (_by_row(jnp.sqrt(batch["weights"]), s) * D.reshape(-1, self.width) @ W)[None]
        every = (batch["inputs"] @ W.T) @ D.reshape(-1, self.width).T
        return jnp.einsum("bkf,bk->bf", every.reshape(-1, s.count, s.features), _asked(batch, s))

    def target(self, batch: Tree, context: Tree, hyper: Tree) -> Float[Array, "batch ..."]:
        """y_k of every sample, or all sqrt(pi_k) A_k."""
        s, amplitudes = self.stream, context["amplitudes"]
        if not s.batch:
            return (_by_row(jnp.sqrt(batch["weights"]), s) * _teacher(amplitudes, s))[None]
        blocks = batch["inputs"][:, : s.count * s.features].reshape(-1, s.count, s.features)
        return jnp.einsum("bkf,kf,bk->bf", blocks, amplitudes, _asked(batch, s))

    def compare(
        self, prediction: Float[Array, "batch ..."], target: Float[Array, "batch ..."]
    ) -> Float[Array, " batch"]:
        """The squared error, summed over features."""
        return jnp.sum(jnp.square(prediction - target), axis=tuple(range(1, prediction.ndim)))

    def measures(self, seen: Seen) -> dict[str, Array]:
        """What of every task is captured and lost, and how the gradients of common tasks meet those of the rare one.

        With P the projection on the rows of W and C_k = A_k^T A_k (sections 3 and 4, appendix B.1):

        * task_loss = ||A_k - D_k W||^2, task_normalised its share of tr C_k, task_signal = tr(P C_k) / tr C_k,
          task_corrected = (signal - width/inputs) / (1 - width/inputs), 0 for a random encoder; each for all tasks, the
          last two also as rare_signal and rare_corrected;
        * population_loss = sum_k pi_k task_loss_k, captured = sum_k pi_k tr(P C_k);
        * residual_common = sum of pi_k tr((1 - P) C_k) over the common tasks; common_gradient = ||2 (1 - P) M_F U||
          and common_bound = 2 sqrt(lambda_1(M_F) residual_common), which it cannot exceed (theorem 4);
        * gradient_common, gradient_rare: norms of these tasks' parts of the gradient of W; cosine_rare_common,
          cosine_rare_others: cosines between the rare task's and these tasks'; cosine_null: the standard deviation of
          that between random directions.
        """
        s, c, W, D = self.stream, seen.context, seen.params["W"], seen.params["D"]
        pi, spectrum, common, rare = c["frequencies"], jnp.square(c["amplitudes"]), c["common"], c["rare"]
        basis = orthonormal(W).T
        features = s.count * s.features
        beyond = jnp.eye(s.inputs, features) - basis @ basis[:features].T  # (1 - P) of every feature's direction
        missing = jnp.sum(jnp.square(beyond), axis=0).reshape(s.count, s.features)  # exact where 1 - P_ii would round
        total = jnp.sum(spectrum, 1)
        signal = 1.0 - jnp.sum(missing * spectrum, 1) / total
        chance = self.width / s.inputs
        corrected = (signal - chance) / (1.0 - chance) if chance < 1.0 else jnp.zeros_like(signal)
        errors = D @ W - _teacher(c["amplitudes"], s).reshape(s.count, s.features, s.inputs)
        lost = jnp.sum(jnp.square(errors), (1, 2))

        M = (common * pi)[:, None] * spectrum
        residual = jnp.sum(M * missing)
        tangent = 2.0 * (beyond * M.reshape(-1)) @ basis[:features]
        pulls = [2.0 * jnp.einsum("k,kfn,kfi->ni", pi * of, D, errors) for of in (rare, common, 1.0 - rare)]
        return {
            "population_loss": jnp.sum(pi * lost),
            "captured": jnp.sum(pi * total * signal),
            "rare_signal": jnp.sum(rare * signal),
            "rare_corrected": jnp.sum(rare * corrected),
            "residual_common": residual,
            "common_gradient": jnp.linalg.norm(tangent),
            "common_bound": 2.0 * jnp.sqrt(jnp.max(M) * residual),
            "gradient_rare": jnp.linalg.norm(pulls[0]),
            "gradient_common": jnp.linalg.norm(pulls[1]),
            "cosine_rare_common": _cosine(pulls[0], pulls[1]),
            "cosine_rare_others": _cosine(pulls[0], pulls[2]),
            "cosine_null": jnp.asarray((self.width * s.inputs) ** -0.5),
            "task_loss": lost,
            "task_normalised": lost / total,
            "task_signal": signal,
            "task_corrected": corrected,
        }

    def flops(self) -> float:
        """Encoder, all decoders, and their gradients."""
        s = self.stream
        outputs = s.count * s.features
        return 6.0 * self.width * (s.batch * (s.inputs + outputs) if s.batch else s.inputs * outputs)

    def activation_bytes(self) -> float:
        """What is predicted, the targets, their difference, and what is encoded."""
        s = self.stream
        outputs = s.count * s.features
        return 4.0 * (s.batch * (2 * outputs + self.width) if s.batch else 3 * outputs * s.inputs)


def orthonormal(rows: Float[Array, "width inputs"]) -> Float[Array, "width inputs"]:
    """Orthonormal rows that span the same space, by Gram and Schmidt, each row twice so that rounding does not add up.

    Without LAPACK, whose threads beside those of training took a thousand times as long on a busy machine.
    """

    def add(i: Any, basis: Array) -> Array:
        row = rows[i]
        for _ in range(2):
            row = row - (basis @ row) @ basis
            length = jnp.linalg.norm(row)
            row = row / jnp.where(length > 0, length, 1.0)
        return basis.at[i].set(row)

    return jax.lax.fori_loop(0, len(rows), add, jnp.zeros_like(rows))


def _teacher(amplitudes: Float[Array, "count features"], s: TaskStream) -> Float[Array, "outputs inputs"]:
    """All A_k, one below the other: each feature is a coordinate of its own, times its amplitude."""
    return jnp.eye(s.count * s.features, s.inputs) * amplitudes.reshape(-1)[:, None]


def _by_row(of_tasks: Float[Array, " count"], s: TaskStream) -> Float[Array, "outputs 1"]:
    """A task's number for each of its features."""
    return jnp.repeat(of_tasks, s.features)[:, None]


def _asked(batch: Tree, s: TaskStream) -> Float[Array, "batch count"]:
    """1 at the task of each sample."""
    return jax.nn.one_hot(batch["task"], s.count)


def _cosine(a: Array, b: Array) -> Array:
    lengths = jnp.linalg.norm(a) * jnp.linalg.norm(b)
    return jnp.sum(a * b) / jnp.where(lengths > 0, lengths, 1.0)


def problem_of(config: TasksConfig) -> TasksProblem:
    """The static part of a resolved config."""
    t, train = config.tasks, config.train
    batch = 0 if train.gradient == "population" else train.batch
    return TasksProblem(TaskStream(t.count, t.features, t.inputs, batch), config.student.width)


def source_of(config: TasksConfig) -> Tree:
    """Frequencies and amplitudes, which tasks are common, which is rare, and for how many steps it is withheld."""
    t = config.tasks
    assert t.rare
    pi = t.frequencies()
    return {
        "frequencies": np.float32(pi),
        "amplitudes": np.float32(t.amplitudes()),
        "common": np.float32(common_tasks(pi)),
        "rare": np.float32(np.arange(t.count) == t.rare - 1),
        "gap": np.int32(config.injection.gap),
    }


def hyper_of(config: TasksConfig) -> dict[str, float]:
    """The loss has no numbers of its own."""
    return {}
