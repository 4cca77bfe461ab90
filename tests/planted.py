"""Networks with planted geometry, as subjects: no weights, only states with known angles."""

import numpy as np

from toydepth.geometry.seen import Seen, Subject


class Planted(Subject):
    """States handed over in batches."""

    def __init__(self, states, kind="model", converged=None, batch=None, first=None, tokens=None, **more):
        self.states = np.asarray(states, np.float32)
        self.name, self.kind, self.converged = "planted", kind, converged
        self.depth, self.width = len(states) - 1, self.states.shape[2]
        count = self.states.shape[1]
        self.batch, self.words = batch or count, tokens
        self.first = np.zeros(count, bool) if first is None else first
        self.more = more  # loss and early, per token

    def batches(self):
        for i in range(0, self.states.shape[1], self.batch):
            part = slice(i, i + self.batch)
            more = {name: values[..., part] for name, values in self.more.items()}
            words = None if self.words is None else self.words[part]
            h = self.states[:, part]
            yield Seen(h, 2 * h[-1], self.first[part], tokens=words, **more)

    def losses(self, orders):
        """The mean square of the last state after walking the updates in another order, against the own one."""
        updates = np.diff(self.states, axis=0)
        found = {}
        for name, order in orders.items():
            last = self.states[0] + sum(updates[i] for i in (range(self.depth) if order is None else order))
            found[name] = float(np.mean((last - self.states[-1]) ** 2))
        return found


def rotation(depth, tokens=64, width=24, angle=0.05, seed=0):
    """A smooth network: one small rotation, repeated: updates of neighbours differ by its angle."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((width, width)))
    turn = np.eye(width)
    for i in range(0, width, 2):
        turn[i : i + 2, i : i + 2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    turn = basis @ turn @ basis.T
    states = [rng.standard_normal((tokens, width))]
    for _ in range(depth):
        states.append(states[-1] @ turn.T)
    return np.stack(states)


def walk(depth, tokens=64, width=512, step=0.1, seed=0):
    """A rough network: every layer moves every token in a direction of its own."""
    rng = np.random.default_rng(seed)
    start = rng.standard_normal((1, tokens, width))
    moves = rng.standard_normal((depth, tokens, width)) * step
    return np.concatenate([start, start + np.cumsum(moves, axis=0)])
