"""Gradients of several tasks, kept as they come: the same as flat vectors, and no larger than they need to be."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from taskloom.core import combine_gradients, gradients, gramian_of, take_gradients

ROWS = torch.tensor([[3, 5, 3, 80], [5, 7, 90, 1], [2, 2, 80, 5]])  # of a table of 100, for each task


def taken_of(task: int, *, sparse: bool) -> tuple[list[nn.Parameter], Tensor]:
    """The parameters after one task's backward pass, and their gradients as one flat vector."""
    draws = torch.Generator().manual_seed(5)
    table, layer = (nn.Parameter(torch.randn(rows, 4, generator=draws)) for rows in (100, 4))
    vectors = embedding(ROWS[task], table, sparse=sparse)  # [4, 4]
    (vectors if task == 2 else vectors @ layer).sin().sum().backward()  # the last task does not reach the layer
    full = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in (table, layer)]
    return [table, layer], torch.cat([gradient.reshape(-1) for gradient in full])


@pytest.mark.parametrize("small", [1, gradients.SMALL])  # one by one, or side by side
@pytest.mark.parametrize("layout", ["dense", "sparse", "mixed"])
def test_gramian_and_combination_are_those_of_flat_vectors(
    layout: str, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables as rows, tables in full, parameters that a task does not reach."""
    monkeypatch.setattr(gradients, "SMALL", small)
    taken, flat = [], []
    for task in range(3):
        parameters, vector = taken_of(task, sparse=layout == "sparse" or (layout == "mixed" and task == 1))
        taken.append(take_gradients(parameters))
        flat.append(vector)
        assert all(p.grad is None for p in parameters)
    if layout == "mixed":
        taken[0][0] = taken[0][0].to_dense()  # type: ignore[union-attr]
    jacobian = torch.stack(flat)
    torch.testing.assert_close(gramian_of(taken, ["a", "b", "c"]), (jacobian @ jacobian.T).double())
    weights = torch.tensor([0.5, -2.0, 3.0], dtype=torch.float64)
    combine_gradients(taken, weights, parameters)
    result = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
    torch.testing.assert_close(result, weights.float() @ jacobian)
    assert all(gradient is None for row in taken for gradient in row)


def test_a_table_is_kept_as_the_rows_a_batch_touched() -> None:
    table, layer = take_gradients(taken_of(0, sparse=False)[0])
    assert table is not None
    assert layer is not None
    assert (table.is_sparse, layer.is_sparse) == (True, False)
    assert table.indices()[0].tolist() == [3, 5, 80]
