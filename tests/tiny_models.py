"""What tests of language models share: tiny random ones of every family, made on the spot, and their naive use."""

from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from toydepth.geometry.families import FAMILIES  # noqa: E402

VOCAB, WIDTH, DEPTH, LIMIT = 64, 16, 4, 48
COMMON = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.4}
SHAPE = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": 4, "max_position_embeddings": LIMIT}
LLAMA = SHAPE | {"intermediate_size": 32, "num_key_value_heads": 2, "head_dim": 4}
OPT = SHAPE | {"ffn_dim": 32, "init_std": COMMON["initializer_range"]}
CONFIGS = {
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**COMMON, **SHAPE, intermediate_size=32),
    "gpt_neox, one after another": lambda: transformers.GPTNeoXConfig(
        **COMMON, **SHAPE, intermediate_size=32, use_parallel_residual=False
    ),
    "opt": lambda: transformers.OPTConfig(**COMMON, **OPT, word_embed_proj_dim=WIDTH),
    "opt, narrow embeddings, no final norm": lambda: transformers.OPTConfig(
        **COMMON, **OPT, word_embed_proj_dim=8, do_layer_norm_before=False
    ),
    "qwen2": lambda: transformers.Qwen2Config(**COMMON, **LLAMA),
    "qwen2, half of it in a window": lambda: transformers.Qwen2Config(
        **COMMON, **LLAMA, use_sliding_window=True, sliding_window=4, max_window_layers=2
    ),
    "llama": lambda: transformers.LlamaConfig(**COMMON, **LLAMA),
    "gpt2": lambda: transformers.GPT2Config(
        **COMMON, n_embd=WIDTH, n_layer=DEPTH, n_head=4, n_positions=LIMIT, n_inner=32
    ),
}
KINDS = list(CONFIGS)


def model_of(kind, seed=0):
    """A random model; its layers do a lot, so that a wrong one shows."""
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[kind](), attn_implementation="eager").eval()


def tokenizer_of(opening=False):
    """Words w1 ... w62 and <s>, which begins every text if there is an opening; words not known are <unk>."""
    vocab = {"<s>": 0, **{f"w{i}": i for i in range(1, VOCAB - 1)}, "<unk>": VOCAB - 1}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if opening:
        words.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="<unk>")


def words(count, seed=0):
    """Random words as text."""
    return " ".join(f"w{i}" for i in np.random.default_rng(seed).integers(1, VOCAB - 1, count))


def texts(tmp_path, *counts):
    """Files of so many random words each."""
    paths = [tmp_path / f"text{i}.txt" for i in range(len(counts))]
    for i, path in enumerate(paths):
        path.write_text(words(counts[i], seed=i))
    return paths


def saved(folder, kind="llama", opening=False):
    """A model's folder as Hugging Face writes it."""
    model_of(kind).save_pretrained(folder)
    tokenizer_of(opening).save_pretrained(folder)
    return folder


def blocks_of(model):
    family = FAMILIES[model.config.model_type]
    core = model.get_submodule(family.core)
    return getattr(core, family.blocks)


@contextmanager
def hooked(model, inputs=None, outputs=None):
    """The model with other inputs or outputs of blocks ({layer: states, or a function of them}); yields its own."""
    seen = {}
    with ExitStack() as stack:
        for layer, block in enumerate(blocks_of(model)):

            def before(_, positional, named, layer=layer):
                if inputs and layer in inputs:
                    if positional:
                        return (inputs[layer], *positional[1:]), named
                    return positional, named | {"hidden_states": inputs[layer]}
                return None

            def after(_, given, output, layer=layer):
                if outputs and layer in outputs:
                    output = outputs[layer](output) if callable(outputs[layer]) else outputs[layer]
                seen[layer] = output
                return output

            stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(after).remove)
        yield seen


@torch.no_grad()
def naive(model, ids, **hooks):
    """The logits of one text, from the model's own call, and the outputs of its blocks."""
    with hooked(model, **hooks) as seen:
        logits = model(torch.tensor([list(map(int, ids))]), use_cache=False).logits[0]
    return logits, [seen[layer][0] for layer in range(DEPTH)]


def entropies(logits, ids):
    """The cross-entropy of each next token; nan at the last."""
    logs = torch.log_softmax(logits.double(), -1)
    found = [-float(logs[t, int(ids[t + 1])]) for t in range(len(ids) - 1)]
    return np.array([*found, np.nan])
