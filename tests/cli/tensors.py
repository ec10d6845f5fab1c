"""Safetensors files by the Python standard library alone: a writer and reader that share no code with the tool."""

import json
import struct

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4, "I64": 8}


def f8_e4m3_value(code):
    """The number a code of the e4m3 format stands for (no infinities, 0x7F is NaN)."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


F8_VALUES = [(f8_e4m3_value(code), code) for code in range(256) if code & 0x7F != 0x7F]


def encode(dtype, values):
    """Bytes of a flat list, numbers rounded to nearest."""
    if dtype == "BF16":
        codes = []
        for value in values:
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
            nan = value != value
            codes.append((bits >> 16) | 0x40 if nan else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
        return struct.pack(f"<{len(codes)}H", *codes)
    if dtype == "F8_E4M3":
        return bytes(min(F8_VALUES, key=lambda entry: abs(entry[0] - value))[1] for value in values)
    code = {"F32": "f", "F16": "e", "U8": "B", "I32": "i", "I64": "q"}[dtype]
    return struct.pack(f"<{len(values)}{code}", *values)


def decode(dtype, data):
    """The flat list of numbers that bytes hold."""
    count = len(data) // SIZES[dtype]
    if dtype == "BF16":
        halves = struct.unpack(f"<{count}H", data)
        return list(struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(half << 16 for half in halves))))
    if dtype == "F8_E4M3":
        return [f8_e4m3_value(code) for code in data]
    code = {"F32": "f", "F16": "e", "U8": "B", "I32": "i", "I64": "q"}[dtype]
    return list(struct.unpack(f"<{count}{code}", data))


class Tensor:
    """A dtype, a shape and bytes; `values` is the flat list of the numbers after rounding to the dtype."""

    def __init__(self, dtype, shape, values=None, data=None):
        self.dtype = dtype
        self.shape = list(shape)
        self.data = encode(dtype, values) if data is None else data
        elements = 1
        for extent in shape:
            elements *= extent
        assert len(self.data) == elements * SIZES[dtype], (dtype, shape, len(self.data))

    @property
    def values(self):
        return decode(self.dtype, self.data)


def image(tensors, metadata=None, padding=" ", order=None, trailing=b""):
    """A file's bytes. `padding` pads the header to 8 bytes; empty leaves it, and the data, misaligned."""
    header, data = {}, b""
    for name in order or tensors:
        tensor = tensors[name]
        header[name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [len(data), len(data) + len(tensor.data)],
        }
        data += tensor.data
    if metadata is not None:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    if padding:
        text += padding.encode() * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data + trailing


def read(path):
    """(tensors, metadata) of a file."""
    with open(path, "rb") as stream:
        content = stream.read()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    data = content[8 + length :]
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = Tensor(entry["dtype"], entry["shape"], data=data[begin:end])
    return tensors, metadata
