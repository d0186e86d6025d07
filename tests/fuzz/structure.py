"""Structural mutations of JSON values (keys dropped, nested, of another type) and of safetensors files."""

import json
import random
from copy import deepcopy
from typing import Any

from fuzz.mutation import INTERESTING, mutated, mutated_text

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, float("nan"), float("inf"), 10**6, 10**30, "", "x", "..", "²", "\0", "💥",
    "os:system?command=true", [], {}, [[]], {"a": {}}, [None], ["x"], [1, 2, 3], [1e9, 1e9], {"name": 1},
)  # fmt: skip
DTYPES = ("BOOL", "U8", "I8", "I16", "F16", "BF16", "I32", "F32", "F64", "I64", "F8_E4M3", "F4", "x")


def _containers(value: Any) -> list[Any]:
    """Every dict and list inside a JSON value, itself included."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    own = [value] if isinstance(value, dict | list) else []
    return own + [container for item in inner for container in _containers(item)]


def _odd(value: Any, rng: random.Random) -> Any:
    match rng.randrange(6):
        case 0 if isinstance(value, str):
            return mutated_text(value, rng)
        case 1 if isinstance(value, int):
            return rng.choice((1, -1)) * rng.choice(INTERESTING)
        case 2:
            return [value]
        case 3:
            return {"value": value}
        case 4:
            return str(value)
        case _:
            return deepcopy(rng.choice(ODD_VALUES))  # it may be edited next


def mutated_json(value: Any, rng: random.Random) -> Any:
    """A copy with one to three edits: entries dropped, replaced by another value or type, added, copied, nested."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        containers = _containers(value)
        if not containers or rng.random() < 0.02:
            return _odd(value, rng)
        container = rng.choice(containers)
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        if not keys:
            continue
        key, other = rng.choice(keys), rng.choice(keys)
        match rng.randrange(6):
            case 0:
                del container[key]
            case 1 if isinstance(container, dict):
                container[mutated_text(str(key), rng)] = deepcopy(container[other])
            case 1:
                container.append(deepcopy(container[other]))
            case 2:
                container[key] = deepcopy(container[other])
            case 3 if rng.random() < 0.1:
                container[key] = json.loads("[" * 400 + "]" * 400)
                return value
            case _:
                container[key] = _odd(container[key], rng)
    return value


def _json_text(value: Any, rng: random.Random) -> str:
    """JSON that may repeat its first key, or nest deeper than a parser goes."""
    text = json.dumps(value)
    if rng.random() < 0.02 and text.startswith('{"'):
        return text[:-1] + "," + text[1:]
    return text if rng.random() > 0.01 else text[:-1] + ',"deep":' + "[" * 100_000 + "]" * 100_000 + "}"


def assembled(header: Any, body: bytes, rng: random.Random) -> bytes:
    """A safetensors file of any header."""
    text = header if isinstance(header, bytes) else _json_text(header, rng).encode("utf-8", "replace")
    return len(text).to_bytes(8, "little") + text + body


def mutated_state(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file with edits of its bytes, of its table of tensors, or of the JSON facts in its metadata."""
    if rng.random() < 0.3:
        return mutated(data, rng)
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    choice = rng.randrange(10)
    if choice == 0:
        return assembled(mutated_json(header, rng), body, rng)
    if choice == 1:
        name = rng.choice([key for key in header if key != "__metadata__"] or ["x"])
        lie = {
            "dtype": rng.choice(DTYPES),
            "shape": [rng.choice(INTERESTING)],
            "data_offsets": [0, rng.choice(INTERESTING)],
        }
        header[name] = mutated_json(header.get(name, {}), rng) if rng.random() < 0.5 else lie
        return assembled(header, body, rng)
    if choice == 2:  # other tensors under the same names
        names = [key for key in header if key != "__metadata__"]
        rng.shuffle(names)
        values = [header[key] for key in header if key != "__metadata__"]
        kept = dict(zip(names, values, strict=True)) | {"__metadata__": header["__metadata__"]}
        return assembled(kept, body, rng)
    facts = mutated_json(json.loads(header["__metadata__"]["nearkin"]), rng)
    header["__metadata__"]["nearkin"] = _json_text(facts, rng)
    return assembled(header, body, rng)
