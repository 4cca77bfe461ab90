"""Texts as pieces of tokens, and models from folders, caches and GGUF files: what is read, and what is refused."""

import json

import numpy as np
import pytest
from tiny_models import LIMIT, VOCAB, model_of, naive, saved, texts, tokenizer_of, words

from toydepth.fields import ConfigError
from toydepth.geometry import loading
from toydepth.geometry.models import language_model
from toydepth.geometry.texts import Text, documents


def one_line(place, files, **more):
    with pytest.raises(ConfigError) as refused:
        language_model(str(place), files, progress=False, **more)
    assert len(str(refused.value).splitlines()) == 1
    return str(refused.value)


# --- texts ------------------------------------------------------------------------------------------------------


def test_documents(tmp_path, monkeypatch):
    path = tmp_path / "many.txt"
    path.write_text("a b\n\nc\f\n\n\n \nd\n\n\ne\n")
    assert list(documents(path)) == [path.read_text()]
    assert [d.strip() for d in documents(path, "pages")] == ["a b\n\nc", "d\n\n\ne"]
    assert [d.strip() for d in documents(path, "blank")] == ["a b\n\nc", "d", "e"]
    monkeypatch.setattr("toydepth.geometry.texts.LONGEST", 4)
    parts = list(documents(path))
    assert len(parts) > 1 and all(part.endswith("\n") for part in parts) and max(map(len, parts)) < 10


def test_pieces(tmp_path):
    paths = texts(tmp_path, 25, 1 + 10, 7)
    text = Text(paths, tokenizer_of(), 10)
    assert [len(piece) for piece in text.pieces] == [10, 10, 5, 10, 7]  # one word alone has no next one
    assert len(Text(paths, tokenizer_of(), 10, tokens=23)) == 23
    assert [len(piece) for piece in Text(paths, tokenizer_of(), 10, tokens=21).pieces] == [10, 10]
    opened = Text(paths, tokenizer_of(opening=True), 10)
    assert {int(piece[0]) for piece in opened.pieces} == {0} and max(map(len, opened.pieces)) == 10
    assert opened.ids.dtype == np.int32  # four bytes a token are all that stays


# --- loading ----------------------------------------------------------------------------------------------------


def test_a_folder_is_read_as_it_was_written(tmp_path):
    folder = saved(tmp_path / "own", "gpt_neox")
    subject = language_model(str(folder), texts(tmp_path, 30), context=12, progress=False)
    assert (subject.name, subject.kind, subject.converged) == ("own", "model", None)
    states = np.concatenate([seen.states for seen in subject.batches()], 1)
    own = [np.stack([h.numpy() for h in naive(model_of("gpt_neox"), piece)[1]]) for piece in subject.text.pieces]
    np.testing.assert_allclose(states[1:], np.concatenate(own, 1), rtol=1e-3, atol=2e-4)
    assert language_model(str(folder), texts(tmp_path, 90), progress=False).text.starts[1] == LIMIT  # what it can see


def test_a_name_in_the_cache_is_found(tmp_path, monkeypatch):
    folder = saved(tmp_path / "cached")
    asked = []
    monkeypatch.setattr(loading, "snapshot_download", lambda name, **options: asked.append((name, options)) or folder)
    assert language_model("somebody/tiny", texts(tmp_path, 30), progress=False).name == "tiny"
    assert asked == [("somebody/tiny", {"local_files_only": True})]


def test_nothing_of_a_model_is_run(tmp_path):
    folder = saved(tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "own.Own", "AutoConfig": "own.Config"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    language_model(str(folder), texts(tmp_path, 30), progress=False)
    assert not (tmp_path / "run").exists()


def test_what_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    files = texts(tmp_path, 30)
    said = one_line("nobody/nothing-of-that-name", files)
    assert "nobody/nothing-of-that-name: no such folder or file" in said and "nothing is downloaded" in said
    assert "no such folder or file" in one_line(tmp_path / "a" / "b" / "c", files)
    assert "no such folder or file" in one_line("absent.gguf", files)
    assert "no model's folder" in one_line(tmp_path, files)
    assert "ends in .gguf" in one_line(files[0], files)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM is no causal language model"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "t5 is no causal language model"),
        ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, "is no causal language model"),
        ({"model_type": "bloom", "architectures": ["BloomForCausalLM"]}, "unknown architecture bloom; known are gpt_"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}, "unknown architecture own"),
        ({}, "names no model_type"),
    ],
)
def test_what_is_no_causal_model_of_a_known_family_is_refused(tmp_path, config, said):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert said in one_line(tmp_path, texts(tmp_path, 30))


def test_damaged_models_are_refused(tmp_path):
    files, folder = texts(tmp_path, 30), saved(tmp_path / "own")
    weights, tokens = folder / "model.safetensors", folder / "tokenizer.json"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert "damaged or cut short" in one_line(folder, files)
    weights.unlink()
    assert "a file is missing" in one_line(folder, files)
    weights.write_bytes(whole)
    tokens.write_text(tokens.read_text()[:100])
    assert "tokenizer cannot be read" in one_line(folder, files)
    (folder / "config.json").write_text('{"model_type": "llama", "hidden_size"')
    assert "config.json is damaged" in one_line(folder, files)


def test_weights_that_are_not_in_the_files_are_refused(tmp_path):
    """transformers starts them at random."""
    save = pytest.importorskip("safetensors.torch")
    files, folder = texts(tmp_path, 30), saved(tmp_path / "own")
    weights = save.load_file(folder / "model.safetensors")
    del weights["model.layers.2.mlp.up_proj.weight"]
    save.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "1 weights are not in the files" in one_line(folder, files)


def test_texts_that_cannot_be_looked_at_are_refused(tmp_path):
    folder = saved(tmp_path / "own", opening=True)
    good, empty, short, binary = (tmp_path / name for name in ("good", "empty", "short", "binary"))
    good.write_text(words(30))
    empty.write_text("")
    short.write_text("w1\n")
    binary.write_bytes(b"w1 \xff\xfe w2")
    assert "empty; allowed is a text of at least 2 tokens" in one_line(folder, [good, empty])
    assert "short: 1 token; allowed" in one_line(folder, [good, short])
    short.write_text(" \n")
    assert "short: 0 tokens; allowed" in one_line(folder, [short])
    assert "not plain text in UTF-8" in one_line(folder, [binary])
    assert "no such file" in one_line(folder, [tmp_path / "absent"])
    assert "at least one plain text" in one_line(folder, [])
    assert "--context 1: allowed" in one_line(folder, [good], context=1)
    assert "--context 2: allowed is a number from 3 up" in one_line(folder, [good], context=2)
    assert f"allowed is at most {LIMIT}" in one_line(folder, [good], context=1000)
    assert "--tokens 1: allowed" in one_line(folder, [good], tokens=1)
    assert "--split lines: allowed is file, pages, blank" in one_line(folder, [good], split="lines")
    assert "--skip-tokens -1" in one_line(folder, [good], skip_tokens=-1)


# --- GGUF -------------------------------------------------------------------------------------------------------


def turned(weight, heads):
    """Rows as GGUF keeps those of queries and keys: the two halves of a rotation beside each other."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def gguf_of(path, model):
    """A Llama as a GGUF file, with a byte-level tokenizer of digits."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    config, weights = model.config, {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    tokens = ["<s>", *map(str, range(10)), "Ġ", "Ġ1"]
    tokens += [f"<{i}>" for i in range(VOCAB - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (VOCAB - 1))
    writer.add_token_merges(["Ġ 1"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    parts |= {f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"} | {"self_attn.o_proj": "attn_output"}
    parts |= {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
    for layer in range(config.num_hidden_layers):
        names |= {f"model.layers.{layer}.{own}": f"blk.{layer}.{part}" for own, part in parts.items()}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for own, name in names.items():
        weight, turns = weights[f"{own}.weight"], heads.get(own.rpartition(".")[2])
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(turned(weight, turns) if turns else weight))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return path


@pytest.mark.parametrize("named_by", ["file", "folder"])
def test_a_gguf_file_is_the_same_model(tmp_path, named_by):
    model, folder = model_of("llama"), tmp_path / "own"
    folder.mkdir()
    path, text = gguf_of(folder / "tiny.gguf", model), tmp_path / "digits.txt"
    text.write_text("31415 1926535 1 1897932384 62643383279")
    subject = language_model(str(path if named_by == "file" else folder), [text], progress=False)
    assert subject.name == "tiny" and "".join(subject.text.words(subject.text.ids)) == text.read_text()
    [seen] = subject.batches()
    _, own = naive(model, subject.text.ids)
    np.testing.assert_allclose(seen.states[1:], np.stack([h.numpy() for h in own]), rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_a_gguf_file_that_is_cut_short_is_refused(tmp_path, share):
    path, files = gguf_of(tmp_path / "tiny.gguf", model_of("llama")), texts(tmp_path, 30)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert "tiny.gguf: the " in one_line(path, files)
