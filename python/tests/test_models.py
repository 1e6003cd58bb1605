"""Layers and models of the transformers library, tiny and with random weights."""

import pytest
import torch

transformers = pytest.importorskip("transformers")


def test_bert_layer(check):
    config = transformers.BertConfig(
        hidden_size=32, intermediate_size=64, num_attention_heads=4, num_hidden_layers=1, vocab_size=64
    )
    config._attn_implementation = "sdpa"
    layer = transformers.models.bert.modeling_bert.BertLayer(config).eval()
    with torch.no_grad():
        check(layer, torch.randn(2, 16, 32))


def test_llama(compilations):
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        vocab_size=64,
        max_position_embeddings=64,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.randint(0, 64, (2, 16))
    compiled = torch.compile(model, backend="neffuse", fullgraph=True)
    with torch.no_grad():
        ours, eager = compiled(tokens).logits, model(tokens).logits
        truth = model.double()(tokens).logits
    assert len(compilations) == 1
    error, eager_error = ((logits.double() - truth).abs().max() for logits in (ours, eager))
    assert error <= 2 * eager_error + torch.finfo(torch.float32).eps * truth.abs().max()
