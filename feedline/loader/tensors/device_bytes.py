"""The bytes of a slot on another device, in one piece, or with the lists in memory of their own.

Runs in: the trainer. torchrec's train pipelines can free the memory of a KeyedJaggedTensor as soon as its values are on
their way to other ranks, by resizing the storage of its tensors. Whatever shares the storage is freed, too. So where
torchrec is imported, lengths, offsets, values and weights of all lists are a piece of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from feedline.errors import FeedlineError


class DeviceBytes:
    """A slot's bytes as pieces that follow each other, each in a storage of its own."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Sequence[torch.Tensor]) -> None:
        self.pieces = tuple(pieces)

    @property
    def device(self) -> torch.device:
        return self.pieces[0].device

    @property
    def lists_apart(self) -> bool:
        """Whether the lists are a piece of their own."""
        return len(self.pieces) > 1

    def at(self, start: int, nbytes: int) -> torch.Tensor:
        """The bytes of a section, which lies within one piece: uint8 [nbytes], a view."""
        for piece in self.pieces:
            if start + nbytes <= len(piece):
                _refuse_freed(piece)
                return piece[start : start + nbytes]
            start -= len(piece)
        raise AssertionError("a section lies beyond the slot")

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory until the work queued on a stream is done."""
        for piece in self.pieces:
            if piece.untyped_storage().nbytes():
                piece.record_stream(stream)

    def clone(self) -> DeviceBytes:
        """A copy on the same device."""
        for piece in self.pieces:
            _refuse_freed(piece)
        return DeviceBytes([piece.clone() for piece in self.pieces])

    def whole(self) -> torch.Tensor:
        """All bytes in one tensor on the CPU: a copy."""
        for piece in self.pieces:
            _refuse_freed(piece)
        copies = [piece.cpu() for piece in self.pieces]
        return copies[0] if len(copies) == 1 else torch.cat(copies)


def cut_pieces(whole: torch.Tensor, ends: Sequence[int]) -> list[torch.Tensor]:
    """Pieces of a slot's bytes, as views, up to each of these ends and to the slot's; empty ones are left out."""
    starts, stops = (0, *ends), (*ends, len(whole))
    return [whole[start:stop] for start, stop in zip(starts, stops, strict=True) if start < stop]


def copy_pieces(
    pieces: Sequence[torch.Tensor], device: torch.device, *, non_blocking: bool, stream: torch.cuda.Stream | None
) -> DeviceBytes:
    """Copies on a device. stream: the copies run on it, into memory that belongs to the current stream."""
    for piece in pieces:
        _refuse_freed(piece)
    if stream is None:
        return DeviceBytes([piece.to(device, non_blocking=non_blocking) for piece in pieces])
    module = torch.get_device_module(device)
    copies = [torch.empty_like(piece, device=device) for piece in pieces]
    current = module.current_stream(device)
    with module.stream(stream):
        stream.wait_stream(current)  # earlier work there may still use the memory
        for copy, piece in zip(copies, pieces, strict=True):
            copy.copy_(piece, non_blocking=non_blocking)
    return DeviceBytes(copies)


def _refuse_freed(piece: torch.Tensor) -> None:
    if len(piece) and not piece.is_meta and not piece.untyped_storage().nbytes():
        raise FeedlineError(
            "the batch's lists are gone: torchrec's train pipeline has freed their memory, as it does with "
            "free_features_storage_early or clear_data_dist_inputs. Read lists in the sharded modules only, or leave "
            "both options off"
        )
