# SPDX-License-Identifier: Apache-2.0
"""Calls kernels of Triton twice, compares their results with torch's, and prints one line of JSON.

usage: triton_kernel.py pair|other

pair is a vector addition and a sum of rows, other is a kernel that pair does not have. Triton keeps its cache in TRITON_CACHE_DIR.
Where Triton or a card is missing, the line says why in "impossible".
"""

import json
import sys
import time

BEGIN = time.monotonic()
try:
    import torch
    import triton
    import triton.language as tl
except Exception as err:  # a library that cannot be loaded raises OSError, and others do what they like
    print(json.dumps({"impossible": f"import torch and triton: {err!r}"}))
    sys.exit(0)
IMPORTED = time.monotonic() - BEGIN

ROWS, COLUMNS, BLOCK = 64, 512, 1024


@triton.jit
def add_kernel(x, y, out, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def row_sum_kernel(x, out, columns: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out + row, tl.sum(tl.load(x + row * columns + tl.arange(0, columns)), axis=0))


@triton.jit
def distance_kernel(x, y, out, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < n
    tl.store(out + at, tl.abs(tl.load(x + at, mask=inside) - tl.load(y + at, mask=inside)), mask=inside)


def pair(x, y):
    total, sums = torch.empty_like(x), torch.empty(ROWS, device=x.device)
    add_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, total, x.numel(), block=BLOCK)
    row_sum_kernel[(ROWS,)](x, sums, columns=COLUMNS)
    return [(total, x + y), (sums, x.view(ROWS, COLUMNS).sum(dim=1))]


def other(x, y):
    out = torch.empty_like(x)
    distance_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, out, x.numel(), block=BLOCK)
    return [(out, (x - y).abs())]


def listen():
    """Counts what Triton compiled and what it found in its cache. Versions without such a hook leave both at None."""
    counts = {"compiled": None, "found": None}

    def listener(*_, **said):
        if "cache_hit" in said:
            name = "found" if said["cache_hit"] else "compiled"
            counts[name] = (counts[name] or 0) + 1

    try:
        from triton import knobs

        knobs.compilation.listener  # raises where this version has none
        knobs.compilation.listener = listener
        counts.update(compiled=0, found=0)
    except Exception:
        pass
    return counts


def timed(call, *arguments):
    begin = time.monotonic()
    results = call(*arguments)
    torch.cuda.synchronize()
    return time.monotonic() - begin, results


def main(kernels):
    if not torch.cuda.is_available():
        return {"impossible": f"torch {torch.__version__} finds no CUDA device"}
    counts = listen()
    begin = time.monotonic()
    torch.manual_seed(1)
    x, y = (torch.rand(ROWS * COLUMNS, device="cuda") for _ in range(2))
    torch.cuda.synchronize()
    started = time.monotonic() - begin
    first, results = timed(kernels, x, y)
    second, again = timed(kernels, x, y)
    right = all(torch.allclose(got, want, rtol=1e-4, atol=1e-4) for got, want in results + again)
    major, minor = torch.cuda.get_device_capability()
    return {
        "import": IMPORTED,
        "start": started,
        "first": first,
        "second": second,
        "right": right,
        **counts,
        "triton": triton.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "capability": f"{major}{minor}",
    }


print(json.dumps(main({"pair": pair, "other": other}[sys.argv[1]])))
