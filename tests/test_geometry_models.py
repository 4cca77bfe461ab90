"""Language models as subjects: every family's states and losses against the models' own calls, and no look ahead."""

import numpy as np
import pytest
from tiny_models import DEPTH, KINDS, WIDTH, blocks_of, entropies, model_of, naive, texts, tokenizer_of, words

from toydepth.fields import ConfigError
from toydepth.geometry.families import Decoder
from toydepth.geometry.models import LanguageModel
from toydepth.geometry.seen import Subject
from toydepth.geometry.texts import Text

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CLOSE = {"rtol": 1e-3, "atol": 2e-4}
every_kind = pytest.mark.parametrize("kind", KINDS)


def subject_of(tmp_path, kind, counts=(17, 9, 12), opening=False, context=12, **more):
    text = Text(texts(tmp_path, *counts), tokenizer_of(opening), context)
    return LanguageModel(kind, Decoder(model_of(kind)), text, **({"skip_tokens": 10**6, "batch_tokens": 40} | more))


def joined(subject, name):
    """One of the arrays of all batches, tokens last."""
    arrays = [getattr(seen, name) for seen in subject.batches()]
    return np.concatenate(arrays, -2 if name == "states" else 0 if name == "last_normed" else -1)


# --- what is seen -----------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("opening", [False, True])
def test_states_are_those_of_the_models_own_call(tmp_path, kind, opening):
    subject, model = subject_of(tmp_path, kind, opening=opening), model_of(kind)
    assert isinstance(subject, Subject) and subject.depth == DEPTH and subject.width == WIDTH
    pieces = subject.text.pieces
    assert len({len(piece) for piece in pieces}) > 1 and len(pieces) > 3  # so that batches are padded
    batches = list(subject.batches())
    assert len(batches) > 1 and all(seen.states.shape[0] == DEPTH + 1 for seen in batches)
    expected = [np.stack([o.numpy() for o in naive(model, piece)[1]]) for piece in pieces]
    np.testing.assert_allclose(joined(subject, "states")[1:], np.concatenate(expected, 1), **CLOSE)
    at_once = [model(torch.tensor(piece)[None].long(), output_hidden_states=True) for piece in pieces]
    for number, state in ((0, joined(subject, "states")[0]), (-1, batches[0].last_normed)):
        if state is None or "no final norm" in kind:
            assert (state is None) == (number == -1 and "no final norm" in kind)
            continue
        state = joined(subject, "last_normed") if number else state
        own = np.concatenate([found.hidden_states[number][0].detach().numpy() for found in at_once])
        np.testing.assert_allclose(state, own, **CLOSE)


@every_kind
def test_losses_are_those_of_the_models_own_call(tmp_path, kind):
    subject, model = subject_of(tmp_path, kind), model_of(kind)
    pieces = subject.text.pieces
    expected = np.concatenate([entropies(naive(model, piece)[0], piece) for piece in pieces])
    loss = joined(subject, "loss")
    np.testing.assert_allclose(loss, expected, **CLOSE)
    assert np.isnan(loss).sum() == len(pieces)  # the last token of a piece has no next one
    with torch.no_grad():
        whole = [float(model(ids, labels=ids).loss) for ids in (torch.tensor(p)[None].long() for p in pieces)]
    assert np.nanmean(loss) == pytest.approx(np.average(whole, weights=[len(p) - 1 for p in pieces]), abs=1e-3)


@every_kind
def test_the_skip_measure_is_the_models_own_last_block_fed_with_an_earlier_state(tmp_path, kind):
    subject, model = subject_of(tmp_path, kind), model_of(kind)
    early, states, starts = joined(subject, "early"), joined(subject, "states"), subject.text.starts
    assert early.shape == (DEPTH, len(subject.text))
    for layer in range(DEPTH):
        expected = []
        for piece, start in zip(subject.text.pieces, starts, strict=False):
            h = torch.from_numpy(states[layer, start : start + len(piece)])[None]
            expected.append(entropies(naive(model, piece, inputs={DEPTH - 1: h})[0], piece))
        np.testing.assert_allclose(early[layer], np.concatenate(expected), **CLOSE)
    np.testing.assert_allclose(early[-1], joined(subject, "loss"), atol=1e-3)
    assert np.nanmax(np.abs(early[0] - early[-1])) > 0.01  # reading out early matters


@every_kind
def test_no_number_knows_of_a_later_token(tmp_path, kind, monkeypatch):
    def seen(last):
        (tmp_path / "leak.txt").write_text(f"{words(9)} {last}")
        text = Text([tmp_path / "leak.txt"], tokenizer_of(), 12)
        [batch] = LanguageModel(kind, Decoder(model_of(kind)), text).batches()
        return batch

    def same(one, other):
        """Whether all before the last token agrees; the loss there has the last one as its target."""
        return np.allclose(one.states[:, :9], other.states[:, :9], atol=1e-6), np.allclose(
            one.early[:, :8], other.early[:, :8], atol=1e-5
        )

    one, other = seen("w3"), seen("w50")
    assert same(one, other) == (True, True)
    assert not np.allclose(one.states[:, 9], other.states[:, 9], atol=1e-2)
    # The control: without the mask everything does.
    unmasked = staticmethod(lambda at, there, window, dtype: torch.zeros(1, 1, len(at), len(at)))
    monkeypatch.setattr(Decoder, "_mask", unmasked)
    assert same(seen("w3"), seen("w50")) == (False, False)


@every_kind
def test_blocks_that_are_told_less_than_the_model_tells_them_are_refused(kind, monkeypatch):
    ids = tokenizer_of()(words(20), return_tensors="pt")["input_ids"]
    Decoder(model_of(kind)).check(ids)
    unmasked = staticmethod(lambda at, there, window, dtype: torch.zeros(1, 1, len(at), len(at)))
    monkeypatch.setattr(Decoder, "_mask", unmasked)
    with pytest.raises(ConfigError, match="in another way than is known here"):
        Decoder(model_of(kind)).check(ids)


@every_kind
def test_layers_in_other_orders(tmp_path, kind):
    subject = subject_of(tmp_path, kind, counts=(12, 12, 9), sample_tokens=10**6)
    orders = {"own": range(DEPTH), "dropped": [0, 2, 3], "swapped": [0, 2, 1, 3], "repeated": [0, 1, 1, 2, 3]}
    losses = subject.losses(orders | {"backwards": range(DEPTH)[::-1], "none": []})
    assert losses["own"] == pytest.approx(float(np.nanmean(joined(subject, "loss"))), abs=1e-5)
    if "window" not in kind:  # there the model's own call goes by a layer's place, not by the layer
        for name, order in orders.items():
            assert losses[name] == pytest.approx(reordered(kind, subject.text.pieces, order), abs=1e-4), name
    assert len({round(loss, 3) for loss in losses.values()}) == len(losses)


def reordered(kind, pieces, order):
    """The mean loss of a model whose list of blocks is in another order."""
    model = model_of(kind)
    blocks = list(blocks_of(model))
    new = torch.nn.ModuleList([blocks[i] for i in order])
    parent = next(m for m in model.modules() if any(child is blocks_of(model) for child in m.children()))
    name = next(name for name, child in parent.named_children() if child is blocks_of(model))
    setattr(parent, name, new)
    model.config.num_hidden_layers = len(order)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = ["full_attention"] * len(order)
    with torch.no_grad():
        logits = [model(torch.tensor(p)[None].long(), use_cache=False).logits[0] for p in pieces]
    return float(np.nanmean(np.concatenate([entropies(*pair) for pair in zip(logits, pieces, strict=True)])))


@every_kind
def test_all_layers_at_once(tmp_path, kind):
    subject, model = subject_of(tmp_path, kind, sample_tokens=10**6), model_of(kind)
    expected = []
    for piece, start in zip(subject.text.pieces, subject.text.starts, strict=False):
        h = torch.from_numpy(joined(subject, "states")[0, start : start + len(piece)])
        steps = [naive(model, piece, inputs={layer: h[None]})[1][layer] - h for layer in range(DEPTH)]
        logits, _ = naive(model, piece, outputs={DEPTH - 1: (h + sum(steps))[None]})
        expected.append(entropies(logits, piece))
    assert subject.losses({"at once": None})["at once"] == pytest.approx(
        float(np.nanmean(np.concatenate(expected))), abs=1e-4
    )


# --- batches ----------------------------------------------------------------------------------------------------


def test_batches_are_bounded_and_change_nothing(tmp_path):
    small = subject_of(tmp_path, "llama", (40, 31, 8), batch_tokens=12, skip_tokens=30)
    large = subject_of(tmp_path, "llama", (40, 31, 8), batch_tokens=1000, skip_tokens=30)
    sizes = [len(seen) for seen in small.batches()]
    assert max(sizes) <= 12 and sum(sizes) == len(small.text) and len(list(large.batches())) == 1
    for name in ("states", "loss", "early", "last_normed"):
        np.testing.assert_allclose(joined(small, name), joined(large, name), **CLOSE)
    longer = subject_of(tmp_path, "llama", (400,), batch_tokens=40)
    assert max(len(seen) for seen in longer.batches()) <= 40  # ten times the text, no larger batches


def test_the_skip_measure_is_made_on_some_tokens_spread_over_the_text(tmp_path):
    subject = subject_of(tmp_path, "llama", (300,), skip_tokens=60)
    early, loss = joined(subject, "early"), joined(subject, "loss")
    measured = np.isfinite(early).all(0)
    assert np.isfinite(early).any(0).sum() == measured.sum() and 50 <= measured.sum() <= 72
    thirds = measured.reshape(3, -1).sum(1)
    assert thirds.min() >= 0.5 * thirds.max()
    np.testing.assert_array_equal(early[-1, measured], loss[measured])
    assert np.isnan(joined(subject_of(tmp_path, "llama", (300,), skip_tokens=0), "early")).all()


def test_tokens_and_first_ones(tmp_path):
    subject = subject_of(tmp_path, "opt", (17, 9), opening=True, context=12)
    tokens = [token for seen in subject.batches() for token in seen.tokens]
    first = joined(subject, "first")
    assert [token for token, is_first in zip(tokens, first, strict=True) if is_first] == ["<s>"] * 3
    assert " ".join(token for token in tokens if token != "<s>") == f"{words(17)} {words(9, seed=1)}"


def test_the_same_at_every_call(tmp_path):
    subject = subject_of(tmp_path, "gpt2")
    np.testing.assert_array_equal(joined(subject, "states"), joined(subject, "states"))


def test_the_benchmark_looks_at_the_same_tokens(tmp_path):
    from benchmarks import probing

    subject = subject_of(tmp_path, "qwen2", (50, 7))
    counts = {part: sum(act(subject)) for part, (act, _) in probing.PARTS.items()}
    assert set(counts.values()) == {len(subject.text)}
