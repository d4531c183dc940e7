"""A decoder whose whole pass is one compiled call, with weights in panels; batch-invariant.

    panel of float32     [k][outputs of a panel]
    panel of bfloat16    [k / 2][outputs of a panel][2]

Gate and up form one matrix, interleaved by panel, gate first.
"""

from __future__ import annotations

import copy
import math
import weakref
from ctypes import byref

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from models.native.library import LayerFields, Library, MatrixFields, NetworkFields, PassFields
from models.network.attention import Mask, Select
from models.network.decoder.decoder import Decoder, require_alike, sample_text
from models.network.decoder.layer import DecoderLayer
from models.network.kv_store import KvCells, KvStore, PassingStore
from models.network.linear import round_to_int4, round_to_int8
from models.network.quantization import Quantization

ACTIVATIONS = ("SiLU", "SiLUActivation")  # classes of the computed activation


BITS = {Quantization.INT8: 8, Quantization.INT4: 4}

# relative errors of logits from rounding, in a small network; wrong weights exceed 1
ROUNDED = {Quantization.INT8: 0.2, Quantization.INT4: 0.7}


class NotNative(ValueError):
    """The message says why."""


class NativeDecoder(nn.Module):
    """Llama-shaped. One thread at a time; see `twin`."""

    embeddings: Tensor  # (vocabulary, hidden)
    fields: NetworkFields  # for the compiled pass

    def __init__(
        self, decoder: Decoder, library: Library, weights: torch.dtype, quantization: Quantization = Quantization.NONE
    ) -> None:
        """Takes the decoder's weights; raises NotNative, leaving it as it was.

        weights        the decoder's dtype, or bfloat16 where that is exact
        quantization   INT8 or INT4 of linear layers, the head in eight bits at least
        """
        super().__init__()
        _require_computed(decoder, library, weights)
        self._bits = BITS.get(quantization, 0)
        self._library, self._weights = library, weights
        self._spec, self._dtype = decoder.spec, decoder.embeddings.dtype
        self._threads = torch.get_num_threads()
        self.register_buffer("embeddings", decoder.embeddings.to(weights))
        self._tables = [_scaled(decoder.norm_weight), decoder.rotary.table.float().contiguous()]
        self._layers = (LayerFields * len(decoder.layers))()
        layers = [layer for layer in decoder.layers if isinstance(layer, DecoderLayer)]
        self._inner = layers[0].gate_up.out_features // 2
        for fields, layer in zip(self._layers, layers, strict=True):
            self._take_layer(fields, layer)
        self.fields = self._describe(decoder)
        self._open()

    def _open(self) -> None:
        self._opened = self._library.functions.lengthwise_open(byref(self.fields), self._threads)
        if self._opened is None:
            raise torch.OutOfMemoryError(f"out of memory: the compiled pass cannot start {self._threads} threads")
        weakref.finalize(self, self._library.functions.lengthwise_close, self._opened)

    @property
    def weight_bytes(self) -> int:
        """Read by a step, padding included."""
        return sum(buffer.nbytes for name, buffer in self.named_buffers() if name.startswith("matrix"))

    def twin(self) -> NativeDecoder:
        """Shares weights, with threads of its own."""
        twin = copy.copy(self)
        twin._open()
        return twin

    def forward(self, tokens: Tensor, positions: Tensor, mask: Mask, store: KvStore, select: Select = None) -> Tensor:
        """See `LoadedModel.forward`; skips padding."""
        rows, new = tokens.shape
        cells = self._cells(store, rows, new)
        begin, valid = _readable(mask, cells, rows)
        row, place = _real_tokens(cells, valid, rows, new)
        if select is None:
            chosen = torch.arange(rows * new, dtype=torch.int32)
        else:
            index = torch.full((rows, new), -1, dtype=torch.int32)
            index[row, place] = torch.arange(len(row), dtype=torch.int32)
            chosen = index[select]
        logits = torch.empty(len(chosen), self.fields.head.outputs)
        given = tokens[row, place], positions[row, place], row, place + cells.new.start
        arrays = [*(one.to(torch.int32) for one in given), begin, cells.keys, cells.values, chosen, logits]
        names = ("token", "position", "row", "column", "begin", "keys", "values", "select", "logits")
        fields = PassFields(
            tokens=len(row),
            selected=len(chosen),
            valid=None if valid is None else valid.data_ptr(),
            valid_stride=0 if valid is None else valid.stride(0),
            logits_stride=logits.shape[1],
            **dict(zip(("layer_stride", "row_stride", "head_stride"), cells.keys.stride(), strict=False)),
            **{name: one.data_ptr() for name, one in zip(names, arrays, strict=True)},
        )
        if self._library.functions.lengthwise_run(self._opened, byref(fields)):
            raise torch.OutOfMemoryError(f"out of memory: the compiled pass has none for {len(row)} tokens")
        logits = logits[:, : self.fields.vocabulary].contiguous()
        return logits if select is not None else logits.view(rows, new, -1)

    def read(self, tokens: Tensor) -> Tensor:
        """Logits (rows, new, vocab) without a cache."""
        return self.forward(tokens, torch.arange(tokens.shape[1]).expand_as(tokens), None, PassingStore())

    def _cells(self, store: KvStore, rows: int, new: int) -> KvCells:
        cells = store.begin_pass(rows, new)
        if isinstance(cells, PassingStore):
            layout = (self.fields.layers, rows, self.fields.kv_heads, new, self.fields.head_dim)
            buffers = torch.empty((2, *layout), dtype=self._dtype)
            return KvCells(buffers[0], buffers[1], slice(0, new), slice(0, new))
        assert isinstance(cells, KvCells)
        return cells

    def _take_layer(self, fields: LayerFields, layer: DecoderLayer) -> None:
        for name in ("qkv", "out", "gate_up", "down"):
            weight, bias = getattr(layer, name).weight.detach(), getattr(layer, name).bias
            if name == "gate_up":
                weight = _pair_up(weight, self._library.lanes)
                bias = None if bias is None else _pair_up(bias.detach(), self._library.lanes)
            setattr(fields, name, self._matrix(weight, bias, self._bits))
            delattr(layer, name)
        for name in ("before", "between"):
            setattr(fields, name, self._table(_scaled(getattr(layer, name))))
        fields.head_norm = None if layer.head_weight is None else self._table(_scaled(layer.head_weight))
        fields.turns = layer.turns

    def _matrix(self, weight: Tensor, bias: Tensor | None, bits: int) -> MatrixFields:
        """(outputs, k) in panels; `bits` 0 keeps the type."""
        lanes = self._library.lanes
        panel, scales = 2 * lanes, None
        outputs, k = (-(-size // panel) * panel for size in weight.shape)
        padded = pad(weight.detach(), (0, k - weight.shape[1], 0, outputs - weight.shape[0]))
        if bits:
            packed, scales = PACKED[bits](padded.float(), lanes)
        else:
            together = 2 if self._weights is torch.bfloat16 else 1  # adjacent inputs
            packed = padded.to(self._weights).view(-1, panel, k // together, together).transpose(1, 2).contiguous()
        wide = None if bias is None else self._table(pad(bias.detach().float(), (0, outputs - len(bias))))
        kept = [None if one is None else self._keep(one) for one in (packed, scales)]
        return MatrixFields(kept[0], wide, kept[1], outputs, k, bits)

    def _keep(self, values: Tensor) -> int:
        self.register_buffer(f"matrix_{len(self._buffers)}", values)
        return values.data_ptr()

    def _table(self, values: Tensor) -> int:
        """Address in float32, kept alive here."""
        self._tables.append(values.detach().float().contiguous())
        return self._tables[-1].data_ptr()

    def _describe(self, decoder: Decoder) -> NetworkFields:
        spec = decoder.spec
        norm, rotations = self._tables[:2]
        shared = ("heads", "kv_heads", "head_dim", "attention_scale", "embedding_scale")
        return NetworkFields(
            **{name: getattr(spec, name) for name in shared},
            layers=len(self._layers),
            width=self.embeddings.shape[1],
            inner=self._inner,
            vocabulary=decoder.head.out_features,
            bf16_cells=self._dtype is torch.bfloat16,
            bf16_weights=self._weights is torch.bfloat16,
            offset=math.sqrt(spec.eps * self.embeddings.shape[1]),
            head_offset=math.sqrt(spec.eps * spec.head_dim),
            logits_scale=1 / spec.logits_divisor,
            layer=self._layers,
            head=self._matrix(decoder.head.weight, decoder.head.bias, self._bits and 8),
            embeddings=self.embeddings.data_ptr(),
            norm=norm.data_ptr(),
            rotations=rotations.data_ptr(),
        )


@torch.no_grad()
def take_over_natively(
    decoder: Decoder, library: Library, weights: torch.dtype, quantization: Quantization = Quantization.NONE
) -> NativeDecoder:
    """Raises NotNative, the decoder unchanged, and OtherLogits, the decoder unusable."""
    tokens = sample_text(decoder.rotary.positions, len(decoder.embeddings))
    expected = decoder.read(tokens)
    native = NativeDecoder(decoder, library, weights, quantization)
    require_alike(native.read(tokens), expected, decoder.embeddings.dtype, ROUNDED.get(quantization, 0.0))
    return native


def _require_computed(decoder: Decoder, library: Library, weights: torch.dtype) -> None:
    dtype = decoder.embeddings.dtype
    if decoder.embeddings.device.type != "cpu":
        raise NotNative("it is not on a CPU")
    if dtype is not torch.float32 and not (dtype is torch.bfloat16 and library.computes_bfloat16):
        raise NotNative(f"this CPU does not multiply in {str(dtype).removeprefix('torch.')}")
    if any(type(layer.activate).__name__ not in ACTIVATIONS for layer in decoder.layers):
        raise NotNative("its activation is not SiLU")
    if decoder.spec.head_dim % 2:
        raise NotNative("its heads are of an odd size")
    matrices = [decoder.embeddings, *(one.weight for one in decoder.modules() if isinstance(one, nn.Linear))]
    if weights is not dtype and not all(torch.equal(one, one.to(weights).to(dtype)) for one in matrices):
        raise NotNative(f"its weights are not exact in {str(weights).removeprefix('torch.')}")


def _pack_int8(weight: Tensor, lanes: int) -> tuple[Tensor, Tensor]:
    """(outputs, k) as [panel][half][k / 4][lanes][4] bytes, levels + 128, and scales."""
    levels, scales = round_to_int8(weight)
    packed = (levels + 128).to(torch.uint8).view(-1, lanes, weight.shape[1] // 4, 4).transpose(1, 2)
    return packed.contiguous(), scales.float()


def _pack_int4(weight: Tensor, lanes: int) -> tuple[Tensor, Tensor]:
    """(outputs, k) as [panel][half][k / 8][lanes][4] bytes, each two levels four apart, and scales and zeros as
    [panel][half][k / GROUP][2][lanes].
    """
    levels, scale, zero = round_to_int4(weight)
    low, high = levels.to(torch.uint8).view(-1, lanes, weight.shape[1] // 8, 2, 4).transpose(1, 2).unbind(dim=3)
    scales = torch.stack([scale, zero], dim=-1).bfloat16().view(-1, lanes, scale.shape[1], 2).permute(0, 2, 3, 1)
    return (low | high << 4).contiguous(), scales.contiguous()


PACKED = {8: _pack_int8, 4: _pack_int4}


def _scaled(weight: Tensor) -> Tensor:
    """Weight (..., n) times sqrt(n): the compiled norm is x / hypot(|x|, sqrt(eps n)) times that."""
    return weight.float() * math.sqrt(weight.shape[-1])


def _pair_up(gate_up: Tensor, lanes: int) -> Tensor:
    gate, up = gate_up.chunk(2)
    lacking = gate.new_zeros(-len(gate) % (2 * lanes), *gate.shape[1:])
    parts = [torch.cat([part, lacking]).view(-1, lanes, *part.shape[1:]) for part in (gate, up)]
    return torch.stack(parts, dim=1).flatten(0, 2)


def _readable(mask: Mask, cells: KvCells, rows: int) -> tuple[Tensor, Tensor | None]:
    """First column of each row (rows,), and a byte a readable column, None for all; the last token's mask covers the
    others.
    """
    start = cells.read.start or 0
    if mask is None:
        return torch.full((rows,), start, dtype=torch.int32), None
    assert isinstance(mask, Tensor)
    readable = mask[:, 0, -1].expand(rows, -1).to(torch.uint8)
    begin = readable.argmax(dim=1).to(torch.int32)
    if mask.shape[2] == 1 and bool((begin + readable.sum(dim=1) == readable.shape[1]).all()):  # no holes
        return begin + start, None
    return begin + start, pad(readable, (start, 0)).contiguous()


def _real_tokens(cells: KvCells, valid: Tensor | None, rows: int, new: int) -> tuple[Tensor, Tensor]:
    """Rows and places, each (tokens,)."""
    if valid is not None:
        real = valid[:, cells.new].bool()
    elif cells.counts is not None:
        real = torch.arange(new) < torch.tensor(cells.counts)[:, None]
    else:
        real = torch.ones((rows, new), dtype=torch.bool)
    row, place = real.nonzero(as_tuple=True)
    return row, place
