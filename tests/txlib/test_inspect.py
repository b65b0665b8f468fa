"""Activations by name: those of transformers, replaced where they are, and sums that are the logits."""

import pytest
import torch
import transformers

from txlib import load_pretrained
from txlib.generation import generate
from txlib.inspect import (
    SparseAutoencoder,
    ablate,
    activation_names,
    activations,
    dead_features,
    fit_autoencoder,
    logit_attribution,
    logit_lens,
    patching,
    path_patching,
    replace,
)
from txlib.layers import BlockConfig, DeltaConfig
from txlib.models import GPT, GPTConfig

BLOCKS = {
    "gpt2": BlockConfig.of_sizes(32, 4, 64, activation="gelu_tanh", position="learned"),
    "llama": BlockConfig.of_sizes(
        32, 4, 64, norm="rms", activation="swiglu", bias=False, position="rotary_half", kv_heads=2
    ),
    "hybrid": BlockConfig.of_sizes(
        32,
        4,
        64,
        norm="rms",
        bias=False,
        position="none",
        layer_pattern=({"mixer": DeltaConfig(heads=2, head_dim=8)}, {}),
    ),
    "parallel": BlockConfig.of_sizes(32, 4, 64, position="learned", parallel=True, residual_scale=0.7, gate=True),
}
IDS = torch.randint(50, (3, 9), generator=torch.Generator().manual_seed(0))
HEADS = "decoder.layers.1.self_attention.heads"


def make(name):
    torch.manual_seed(0)
    model = GPT(GPTConfig(50, BLOCKS[name], layers=2, max_length=24)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model


@pytest.fixture(params=BLOCKS)
def model(request):
    return make(request.param)


def test_they_are_those_of_transformers(tmp_path):
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=50)
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    inputs = []
    theirs.model.layers[1].self_attn.o_proj.register_forward_pre_hook(lambda module, x: inputs.append(x[0]))
    states = theirs(IDS, output_hidden_states=True).hidden_states
    with activations(load_pretrained(tmp_path), "embedding", "decoder.layers.?", "decoder.norm", HEADS) as seen:
        load = seen
    ours = load_pretrained(tmp_path)
    with activations(ours, "embedding", "decoder.layers.?", "decoder.norm", HEADS) as seen:
        ours(IDS)
    assert not load and set(seen) == {"embedding", "decoder.layers.0", "decoder.layers.1", "decoder.norm", HEADS}
    for name, state in zip(("embedding", "decoder.layers.0", "decoder.norm"), states, strict=True):
        assert torch.allclose(seen[name], state, atol=1e-5), name
    assert torch.allclose(seen[HEADS].transpose(1, 2).flatten(2), inputs[0], atol=1e-5)
    before = seen[HEADS]
    ours(IDS)
    assert seen[HEADS] is before  # outside, nothing is looked at


def test_all_can_be_read_and_replaced_by_themselves_without_a_change(model):
    names = [name for name in activation_names(model) if not name.endswith("rotary")]  # it is called twice
    assert len(names) == len(set(names))
    before = model(IDS).logits
    with activations(model, *names) as seen:
        model(IDS)
    assert {"embedding", "decoder.layers.0", "decoder.layers.1.self_attention.output", "decoder"} <= seen.keys()
    for name, activation in seen.items():
        with replace(model, {name: activation}):
            assert torch.equal(model(IDS).logits, before), name
    assert torch.equal(model(IDS).logits, before)


def test_a_head_without_a_say_is_a_projection_without_its_columns(model):
    with replace(model, {HEADS: ablate(1, 2)}):
        ablated = model(IDS).logits
    assert not torch.allclose(ablated, model(IDS).logits, atol=1e-3)
    with torch.no_grad():
        model.decoder.layers[1].self_attention.output.weight[:, 8:24] = 0
    assert torch.allclose(model(IDS).logits, ablated, atol=1e-5)


def test_a_pattern_changes_all_that_it_fits():
    model = make("llama")
    names = ["decoder.layers.0.feed_forward", "decoder.layers.1.feed_forward"]
    with replace(model, dict.fromkeys(names, torch.zeros_like)):
        expected = model(IDS).logits
    with replace(model, {"decoder.layers.*.feed_forward": torch.zeros_like}):
        assert torch.equal(model(IDS).logits, expected)
    with replace(model, {}):
        assert not torch.allclose(model(IDS).logits, expected, atol=1e-3)


def test_a_head_has_a_name_of_its_own(model):
    names = [f"{HEADS}.{head}" for head in range(4)]
    with activations(model, HEADS, f"{HEADS}.*") as seen:
        model(IDS)
    assert list(seen) == [HEADS, *names]
    assert torch.equal(torch.stack([seen[name] for name in names], dim=1), seen[HEADS])
    with replace(model, {HEADS: ablate(2)}):
        expected = model(IDS).logits
    with replace(model, {names[2]: ablate()}):
        assert torch.equal(model(IDS).logits, expected)


def test_a_part_without_heads_is_removed_whole():
    x = torch.randn(3, 9, 8)
    assert not ablate()(x).any()
    assert torch.allclose(ablate(by="mean")(x)[1, 4], x.flatten(0, 1).mean(dim=0), atol=1e-6)
    assert torch.equal(ablate(by="resample")(x)[1], x[0])


def test_what_takes_the_place_of_a_head(model):
    with activations(model, HEADS) as seen:
        model(IDS)
    x = seen[HEADS]
    mean, other, zero = (ablate(3, by=by)(x) for by in ("mean", "resample", "zero"))
    for new in (mean, other, zero):
        assert torch.equal(new[:, :3], x[:, :3])
    expected = sum(x[text, 3, t] for text in range(3) for t in range(9)) / 27
    assert torch.allclose(mean[1, 3, 4], expected, atol=1e-6)
    assert torch.equal(other[1, 3], x[0, 3]) and torch.equal(other[0, 3], x[2, 3])
    assert not zero[:, 3].any() and not ablate()(x).any()


def test_it_works_while_a_cache_is_used():
    model = make("llama")
    with replace(model, {HEADS: ablate(0)}):
        cached = generate(model, IDS, max_new_tokens=6)
        assert generate(model, IDS, max_new_tokens=6, use_cache=False) == cached
    assert generate(model, IDS, max_new_tokens=6) != cached


def test_gradients_flow_through_what_was_read():
    model = make("llama")
    with activations(model, "decoder.layers.0") as seen:
        loss = model(IDS, labels=IDS).loss
    (gradient,) = torch.autograd.grad(loss, seen["decoder.layers.0"])
    assert gradient.shape == (3, 9, 32) and gradient.abs().sum() > 0


def test_the_lens_ends_with_the_models_own_logits(model):
    lens = logit_lens(model, IDS)
    assert lens.shape == (3, 3, 9, 50)
    assert torch.allclose(lens[-1], model(IDS).logits, atol=1e-5)
    assert torch.allclose(lens[0], model.logits(model.decoder.norm(model.embed(IDS))), atol=1e-5)


@pytest.mark.parametrize("position", [-1, 4])
def test_the_parts_of_a_logit_add_up_to_it(model, position):
    tokens = torch.tensor([5, 17, 40])
    parts = logit_attribution(model, IDS, tokens, position=position)
    logits = model(IDS).logits[:, position].gather(1, tokens[:, None])[:, 0]
    assert torch.allclose(sum(parts.values()), logits, atol=1e-3)
    assert {"embedding", "biases", f"{HEADS}.3", "decoder.layers.0.feed_forward"} <= parts.keys()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_feature_of_the_stream_may_be_zero(name):
    """A norm that divides what it read by what it gave finds 0 / 0 here."""
    model = make(name)
    with torch.no_grad():
        for module in (model.embedding, model.decoder.layers[0], model.decoder.layers[1]):
            for weight in module.parameters():
                weight.zero_()
        model.embedding.weight[:, 5:11] = torch.tensor([1.0, 2.0, -1.0, -2.0, 3.0, -3.0])
    parts = logit_attribution(model, IDS, torch.tensor([5, 17, 40]))
    logits = model(IDS).logits[:, -1].gather(1, torch.tensor([[5], [17], [40]]))[:, 0]
    assert torch.allclose(sum(parts.values()), logits, atol=1e-4)


def test_patching_finds_where_the_texts_differ():
    """After the embedding is patched all is as in the clean text; what lies behind the difference changes nothing."""
    model = make("llama")
    corrupted = IDS.clone()
    corrupted[:, 4] = (corrupted[:, 4] + 1) % 50
    wanted = model(IDS).logits[0, -1, 7].item()

    def logit(output):
        return output.logits[0, -1, 7].item()

    found = patching(model, IDS, corrupted, ["embedding", "decoder.layers.*.self_attention"], logit)
    assert found.keys() == {"embedding", "decoder.layers.0.self_attention", "decoder.layers.1.self_attention"}
    assert found["embedding"] == pytest.approx(wanted, abs=1e-5)
    assert found["decoder.layers.0.self_attention"] != pytest.approx(wanted, abs=1e-5)


def logit_of_seven(output):
    return output.logits[0, -1, 7].item()


@torch.no_grad()
def direct(model, clean, corrupted, sent, receiver):
    """Path patching by hand from layer 0 to layer 1: what a part adds to the stream is exchanged there, and no more."""
    layer = model.decoder.layers[1]
    with activations(model, "decoder.layers.0") as seen:
        model(corrupted)
    stream = seen["decoder.layers.0"] + sent(clean) - sent(corrupted)
    read = getattr(layer.self_attention, receiver)(layer.self_attention_norm(stream))
    hook = getattr(layer.self_attention, receiver).register_forward_hook(lambda module, inputs, output: read)
    try:
        return logit_of_seven(model(corrupted))
    finally:
        hook.remove()


@pytest.mark.parametrize("receiver", ["key", "query"])
def test_a_path_is_what_one_part_adds_for_one_reader(receiver):
    model = make("llama")
    corrupted = IDS.roll(1, dims=0)
    attention = model.decoder.layers[0].self_attention
    layer = "decoder.layers.0.self_attention.heads"

    def by_head(ids):
        with activations(model, layer) as seen:
            model(ids)
        return seen[layer][:, 2] @ attention.output.weight[:, 16:24].T

    def by_feed_forward(ids):
        with activations(model, "decoder.layers.0.feed_forward") as seen:
            model(ids)
        return seen["decoder.layers.0.feed_forward"]

    senders = [f"{layer}.2", "decoder.layers.0.feed_forward"]
    receivers = [f"decoder.layers.1.self_attention.{receiver}"]
    found = path_patching(model, IDS, corrupted, senders, receivers, logit_of_seven)
    for name, sent in zip(senders, (by_head, by_feed_forward), strict=True):
        assert found[name] == pytest.approx(direct(model, IDS, corrupted, sent, receiver), abs=1e-4), name
    assert found[senders[0]] != pytest.approx(found[senders[1]], abs=1e-3)


def test_paths_to_the_logits_and_back_in_time():
    """Straight to the last norm, all parts together turn the corrupted logits into the clean; nothing goes back."""
    model = make("llama")
    corrupted = IDS.roll(1, dims=0)
    senders = ["embedding", "decoder.layers.*.self_attention.heads", "decoder.layers.*.feed_forward"]
    with activations(model, *senders) as seen:
        clean = logit_of_seven(model(IDS))
    with replace(model, dict(seen)):
        assert logit_of_seven(model(corrupted)) == pytest.approx(clean, abs=1e-4)
    back = path_patching(model, IDS, corrupted, [f"{HEADS}.0"], ["decoder.layers.0.self_attention.key"], logit_of_seven)
    assert back[f"{HEADS}.0"] == pytest.approx(logit_of_seven(model(corrupted)), abs=1e-5)


def test_a_sparse_autoencoder_is_its_equation():
    torch.manual_seed(0)
    model = SparseAutoencoder(3, 5).requires_grad_(False)
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight))
    model.scale.fill_(2.0)
    x = torch.randn(2, 3)
    for row, strengths, kept in zip(x, model.encode(x), model(x), strict=True):
        expected = model.center.clone()
        for i in range(5):
            on = model.encoder.weight[i] @ (row - model.center) / 2 + model.encoder.bias[i]
            assert strengths[i] == pytest.approx(max(on.item(), 0), abs=1e-5)
            expected += 2 * max(on.item(), 0) * model.decoder[i] / model.decoder[i].norm()
        assert torch.allclose(kept, expected, atol=1e-5)
    model.encoder.bias[3] = -100.0
    assert dead_features(model, x)[3] and not dead_features(model, x).all()


def test_it_finds_the_directions_that_sums_are_made_of():
    generator = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(8, 8, generator=generator), dim=-1)
    x = 10 * torch.rand(2000, 8, generator=generator)
    x = x * (torch.rand(2000, 8, generator=generator) < 0.1) @ directions + 5
    model = fit_autoencoder(x, 16, sparsity=0.1, steps=300, batch=256, lr=2e-2, quiet=True)
    assert (directions @ model.directions.T).amax(dim=1).median() > 0.9  # of principal components, the median is 0.72
    with torch.no_grad():
        kept = 1 - (x - model(x)).square().sum() / (x - x.mean(dim=0)).square().sum()
    assert kept > 0.9
    once, again = (fit_autoencoder(x, 16, sparsity=0.1, steps=2, quiet=True).directions for _ in range(2))
    assert torch.equal(once, again)


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (lambda model: activations(model, "decoder.layer.0").__enter__(), "did you mean 'decoder.layers.0'"),
        (lambda model: activations(model).__enter__(), "name the activations"),
        (lambda model: replace(model, {"encoder": ablate()}).__enter__(), "has no activation 'encoder'"),
        (lambda model: ablate(1, by="noise"), "by='noise' is unknown; choose one of zero, mean, resample"),
        (lambda model: ablate(4)(torch.zeros(1, 4, 2, 2)), "heads 0 to 3"),
        (lambda model: ablate(by="resample")(torch.zeros(1, 4, 2, 2)), "two or more"),
        (lambda model: ablate(0)(torch.zeros(1, 4, 2)), r"heads \(0,\) are an attention layer's"),
        (lambda model: patching(model, IDS, IDS[:, :5], ["decoder"], float), "make them equal"),
        (lambda model: path_patching(model, IDS, IDS[:1], ["embedding"], ["decoder"], float), "make them equal"),
        (lambda model: fit_autoencoder(torch.zeros(9, 4), 8, sparsity=0.1), "x has 9 rows, fewer than batch=512"),
        (
            lambda model: fit_autoencoder(torch.zeros(9, 4), 8, sparsity=-1.0, batch=4),
            "sparsity=-1.0 must be 0 or more",
        ),
        (lambda model: logit_attribution(post_norm(), IDS, IDS[:, 0]), "only with pre-norm"),
    ],
)
def test_what_is_not_there_is_refused(look, words):
    with pytest.raises(ValueError, match=words):
        look(make("llama"))


def post_norm():
    return GPT(GPTConfig(50, BlockConfig.of_sizes(32, 4, 64, position="learned", norm_first=False), layers=1))


def test_a_tensor_of_another_shape_and_a_compiled_model_are_refused():
    model = make("llama")
    with replace(model, {"decoder.layers.0": torch.zeros(2, 2)}), pytest.raises(ValueError, match=r"\(3, 9, 32\)"):
        model(IDS)
    model.decoder.layers[0].compile()
    with pytest.raises(ValueError, match="compiled"), activations(model, "decoder"):
        pass
