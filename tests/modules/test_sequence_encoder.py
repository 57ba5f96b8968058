"""The encoder of unique rows gives the results and gradients of torch's encoder over each row."""

from __future__ import annotations

import pytest
import torch
from repeated_lists import IDS, INVERSE, LENGTHS, SHAPES, WIDTH, Lists, assert_close, gradients, ids_of

from feedline.loader.tensors.slot_tensors import InverseSparse
from feedline.modules import DedupEmbedding, DedupEmbeddingBag, DedupSequenceEncoder, expand_rows


def padded_encoder(encoder: DedupSequenceEncoder, num_layers: int, **arguments: object) -> torch.nn.TransformerEncoder:
    """torch's encoder with the same parameters."""
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True, dtype=torch.float64, **arguments)
    torchs = torch.nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
    state = {name: value for name, value in encoder.state_dict().items() if name != "positions.weight"}
    torchs.load_state_dict(state)
    return torchs


def encode_rows(
    torchs: torch.nn.TransformerEncoder,
    rows: list[torch.Tensor],
    pooling: str,
    causal: bool,
    positions: torch.Tensor | None,
) -> torch.Tensor:
    """Every row by itself."""
    results = []
    for row in rows:
        if not len(row):
            results.append(torch.zeros(WIDTH, dtype=torch.float64))
            continue
        if positions is not None:
            row = row + positions[torch.arange(len(row)).clamp(max=len(positions) - 1)]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(len(row), dtype=row.dtype) if causal else None
        result = torchs(row[None], mask=mask, is_causal=causal)[0]
        pooled = {
            "mean": lambda r: r.mean(0),
            "sum": lambda r: r.sum(0),
            "first": lambda r: r[0],
            "last": lambda r: r[-1],
        }
        results.append(pooled[pooling](result))
    return torch.stack(results) if results else torch.zeros(0, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize(
    ("num_layers", "pooling", "causal", "positions", "layer"),
    [
        (1, "mean", False, 0, {}),
        (2, "sum", False, 4, {"norm_first": True, "activation": "gelu"}),
        (2, "last", True, 32, {"bias": False}),
        (1, "first", False, 0, {"layer_norm_eps": 1e-3}),
    ],
)
def test_an_encoder_has_the_results_and_gradients_of_torchs_over_each_row(
    num_layers, pooling, causal, positions, layer
):
    torch.manual_seed(5)
    encoder = DedupSequenceEncoder(
        WIDTH, 2, num_layers, 16, 0.0, pooling=pooling, causal=causal, positions=positions, dtype=torch.float64, **layer
    )
    torchs = padded_encoder(encoder, num_layers, **layer)
    table = torch.randn(IDS, WIDTH, dtype=torch.float64, requires_grad=True)
    places = None if encoder.positions is None else encoder.positions.weight
    own = [parameter for name, parameter in encoder.named_parameters() if name != "positions.weight"]
    for lengths, inverse in SHAPES if num_layers == 1 else SHAPES[:1]:
        lists = ids_of(lengths, inverse)
        wanted = encode_rows(torchs, [table[row] for row in lists.rows], pooling, causal, places)
        of_torch = gradients(wanted, table, *torchs.parameters()) if wanted.requires_grad else None
        for max_length in (None, 12):
            encoder.max_length = max_length
            for feature in (lists.deduplicated(), lists.plain()):
                feature.values = table[feature.values]
                found = encoder(feature)
                torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
                of_ours = gradients(found, table, *own)
                assert_close(of_ours, of_torch or [torch.zeros_like(each) for each in of_ours])
                unique = encoder(feature, expand=False)
                assert torch.equal(expand_rows(unique, feature), found)


def test_a_nan_stays_in_its_row():
    encoder = DedupSequenceEncoder(WIDTH, 2, 1, 16, 0.0)
    lists = Lists([torch.ones(3, WIDTH), torch.full((2, WIDTH), torch.nan), torch.ones(9, WIDTH)], [0, 1, 1, 2])
    feature = InverseSparse(
        torch.cat(lists.lists), torch.tensor([3, 2, 9]), torch.tensor([0, 3, 5, 14]), None, torch.tensor(lists.inverse)
    )
    assert encoder(feature).isnan().all(1).tolist() == [False, True, True, False]


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")  # of torch, on that version alone
def test_modules_compile_into_one_graph():
    embedding, bag = DedupEmbedding(IDS, WIDTH), DedupEmbeddingBag(IDS, WIDTH)
    encoder = DedupSequenceEncoder(WIDTH, 2, 1, 16, 0.0, max_length=12)

    def model(feature: InverseSparse) -> torch.Tensor:
        return bag(feature) + encoder(embedding(feature))

    feature = ids_of(LENGTHS, INVERSE).deduplicated()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(feature), model(feature))


def test_wrong_input_of_the_encoder_is_refused_with_a_remedy():
    feature = ids_of(LENGTHS, INVERSE).deduplicated()
    encoder = DedupSequenceEncoder(WIDTH, 2, 1, 16, max_length=5)
    feature.values = feature.values.float()
    with pytest.raises(ValueError, match=r"takes embeddings \[V, 8\]: got values of shape \[17\]\. Pass a feature"):
        encoder(feature)
    feature.values = torch.ones(17, WIDTH)
    with pytest.raises(RuntimeError, match=r"longer than max_length .* Cut lists with first_x"):
        encoder(feature)
    feature.weights = torch.ones(17)
    with pytest.raises(ValueError, match=r"no use for weights: got a weighted feature\. Pool it"):
        encoder(feature)
    with pytest.raises(ValueError, match=r"got 'median', expected one of mean, sum, first, last"):
        DedupSequenceEncoder(WIDTH, 2, pooling="median")
    with pytest.raises(ValueError, match="divides d_model: got 3 heads and 8"):
        DedupSequenceEncoder(WIDTH, 3)
