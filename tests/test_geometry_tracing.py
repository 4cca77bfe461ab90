"""Causal tracing against a naive loop of the models' own calls, for every family."""

import numpy as np
import pytest
from tiny_models import DEPTH, KINDS, LIMIT, model_of, naive, tokenizer_of, words

from toydepth.fields import ConfigError
from toydepth.geometry.families import FAMILIES, Decoder
from toydepth.geometry.tracing import NOISE, trace

torch = pytest.importorskip("torch")

PROMPT, SUBJECT, ANSWER = "w5 w6 w7 w8 w9 w10", "w6 w7", "w11"
IDS, INSIDE, WANTED = [5, 6, 7, 8, 9, 10], (1, 3), 11
every_kind = pytest.mark.parametrize("kind", KINDS)


def traced(kind, tokenizer=None, **more):
    asked = {"prompt": PROMPT, "subject": SUBJECT, "answer": ANSWER} | more
    return trace(Decoder(model_of(kind)), tokenizer or tokenizer_of(), **asked)


def probability(model, noise, **hooks):
    """The answer's probability when the subject's embeddings are changed."""
    family = FAMILIES[model.config.model_type]
    embedding = getattr(model.get_submodule(family.core), family.embedding)

    def corrupted(_, given, output):
        output = output.clone()
        output[0, slice(*INSIDE)] += noise
        return output

    hook = embedding.register_forward_hook(corrupted)
    try:
        logits, outputs = naive(model, IDS, **hooks)
    finally:
        hook.remove()
    return float(logits[-1].softmax(-1)[WANTED]), outputs


@every_kind
def test_each_layer_and_token_is_restored_as_by_hand(kind):
    model, found = model_of(kind), traced(kind, seed=3)
    weights = model.get_input_embeddings().weight.detach()
    draw = np.random.default_rng(3).standard_normal((2, weights.shape[1]), np.float32)
    noise = NOISE * float(weights.std()) * torch.from_numpy(draw)
    p_clean, clean = probability(model, 0.0)
    p_corrupt, _ = probability(model, noise)
    assert (found.p_clean, found.p_corrupt) == (pytest.approx(p_clean, abs=1e-6), pytest.approx(p_corrupt, abs=1e-6))
    assert found.restored.shape == (DEPTH, len(IDS))
    for layer in range(DEPTH):
        for token in range(len(IDS)):

            def restore(output, layer=layer, token=token):
                output = output.clone()
                output[0, token] = clean[layer][token]
                return output

            expected, _ = probability(model, noise, outputs={layer: restore})
            assert found.restored[layer, token] == pytest.approx(expected, abs=1e-6), (layer, token)
    assert np.ptp(found.restored) > 1e-3  # the maps are not of one colour


@every_kind
def test_what_must_be_so_in_every_model(kind):
    found = traced(kind)
    assert found.restored[-1, -1] == pytest.approx(found.p_clean, abs=1e-6)  # all that the head sees
    assert found.restored[-1, :-1] == pytest.approx(found.p_corrupt, abs=1e-6)  # what it does not see
    assert found.restored[:, 0] == pytest.approx(found.p_corrupt, abs=1e-6)  # before the subject nothing was corrupted
    assert abs(found.p_clean - found.p_corrupt) > 1e-4
    slight = traced(kind, noise=1e-6)
    assert slight.restored == pytest.approx(slight.p_clean, abs=1e-5)  # nothing to restore


def test_the_noise_is_drawn_by_its_seed():
    one, again, other = traced("llama", seed=1), traced("llama", seed=1), traced("llama", seed=2)
    np.testing.assert_array_equal(one.restored, again.restored)
    assert one.p_corrupt != other.p_corrupt and one.p_clean == other.p_clean


def test_batches_of_copies_change_nothing(monkeypatch):
    one = traced("gpt_neox")
    monkeypatch.setattr("toydepth.geometry.tracing.MOST_TOKENS", 2 * len(IDS))
    np.testing.assert_allclose(traced("gpt_neox").restored, one.restored, atol=1e-6)


def test_where_the_subject_and_the_answer_are():
    found = traced("llama", prompt="w6 w7 w5 w6 w7 w8", subject="w6 w7")
    assert found.tokens == ["w6", "w7", "w5", "w6", "w7", "w8"]
    assert found.subject == (3, 5) and found.answer == "w11"  # the last of two
    opened = traced("llama", tokenizer_of(opening=True), prompt="w6 w7 w8", subject="w7", answer="w9 w10")
    assert opened.tokens[0] == "<s>" and opened.subject == (2, 3) and opened.answer == "w9"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"subject": "w20"}, "subject 'w20': allowed is a part of the prompt"),
        ({"subject": " "}, "allowed is a part of the prompt"),
        ({"prompt": ""}, "allowed is a part of the prompt"),
        ({"answer": ""}, "answer '': allowed is a text"),
        ({"noise": 0.0}, "--noise 0: allowed is a number above 0"),
        ({"noise": float("nan")}, "--noise nan"),
        ({"prompt": f"{words(LIMIT)} {SUBJECT}"}, f"allowed are at most {LIMIT}"),
    ],
)
def test_what_cannot_be_traced_is_refused(asked, said):
    with pytest.raises(ConfigError) as refused:
        traced("llama", **asked)
    assert said in str(refused.value) and len(str(refused.value).splitlines()) == 1
