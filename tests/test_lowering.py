"""The programs of a family, as they are compiled, are lowered for CUDA on a machine that has none."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from toydepth import ensemble
from toydepth.ensemble import Member
from toydepth.programs import Programs


class Lowered(Programs):
    """Programs that are lowered for a platform in place of being compiled for this machine."""

    platform = "cuda"

    def __init__(self, family, mesh):
        self.texts = {}  # {what a program does: its text}
        super().__init__(family, mesh)

    def _lowered(self, name, traced):
        with jax.default_matmul_precision(self.family.mode.precision):
            text = traced.lower(lowering_platforms=(self.platform,)).as_text()
        self.texts[name if isinstance(name, str) else name[0]] = text
        return text

    def _compiled(self, name, lowered):
        return lowered


def lowered(members):
    """{what a program does: its text} of all programs of the members' family, on two devices."""
    devices = jax.local_devices()
    (family,) = ensemble.plan(members, len(devices))
    return Lowered(family, Mesh(np.array(devices), ("runs",))).texts


@pytest.mark.parametrize("loss", ["mse", "kl"])
@pytest.mark.parametrize("scheme", ["euler", "rk4"])
@pytest.mark.parametrize("optimizer", ["muon", "adam"])
def test_every_program_of_a_gpu_is_lowered(tiny, loss, scheme, optimizer):
    fields = {"target__loss": loss, "student__scheme": scheme, "optimizer__name": optimizer}
    members = [Member(str(lr), tiny(optimizer__lr=lr, runtime__batching="vmap", **fields)) for lr in (0.01, 0.02, 0.03)]
    texts = lowered(members)
    assert texts.keys() >= {"init", "stage", "fresh", "advance", "evaluate"}
    assert all("func.func public @main" in text for text in texts.values())
    with_products = {name for name, text in texts.items() if "stablehlo.dot_general" in text}
    assert with_products == {"stage", "advance", "evaluate"}


def test_what_a_platform_has_not_is_refused(tiny, monkeypatch):
    """The control: a lowering that knows no such platform fails."""
    monkeypatch.setattr(Lowered, "platform", "abacus")
    with pytest.raises(Exception, match="abacus"):
        lowered([Member("a", tiny(runtime__batching="vmap"))])
