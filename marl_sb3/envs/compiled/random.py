"""Random numbers within compiled rules: those that the NumPy generator of the episode would draw next, to the bit.

The generator is NumPy's PCG64 (O'Neill 2014, https://www.pcg-random.org/paper.html). Its state is 4 words of 64 bits:
the state's upper and lower half, and the increment's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_sb3.compiling import seed_words, strict_entry, strict_kernel
from marl_sb3.types import Array

_LOWER = (1 << 64) - 1

_u64 = np.uint64
_32, _LOW_32 = _u64(32), _u64(0xFFFFFFFF)
_MULTIPLIER_HIGH, _MULTIPLIER_LOW = _u64(0x2360ED051FC65DA4), _u64(0x4385DF649FCCF645)


def words_of(rng: np.random.Generator) -> Array:
    """Return the state of a generator as words."""
    own: Any = rng.bit_generator.state
    state, step = own["state"]["state"], own["state"]["inc"]
    halves = (state >> 64, state & _LOWER, step >> 64, step & _LOWER)
    return np.array(halves, dtype=np.uint64)


def generator_of(words: Array) -> np.random.Generator:
    """Return a generator that goes on with such words."""
    rng = np.random.Generator(np.random.PCG64(0))
    state, step = ((int(words[at]) << 64) + int(words[at + 1]) for at in (0, 2))
    rng.bit_generator.state = {**rng.bit_generator.state, "state": {"state": state, "inc": step}}
    return rng


@strict_kernel
def _upper_of_product(a: Any, b: Any) -> Any:
    """Return the upper 64 bits of the product of two words."""
    a_high, a_low, b_high, b_low = a >> _32, a & _LOW_32, b >> _32, b & _LOW_32
    middle = a_high * b_low + ((a_low * b_low) >> _32)
    other = a_low * b_high + (middle & _LOW_32)
    return a_high * b_high + (middle >> _32) + (other >> _32)


@strict_kernel
def next_word(rng: Array) -> Any:
    """Return 64 random bits.

    Args:
        rng: (4,) uint64, the words of the episode; changed.
    """
    high, low = rng[0], rng[1]
    new_low = low * _MULTIPLIER_LOW
    new_high = _upper_of_product(low, _MULTIPLIER_LOW) + high * _MULTIPLIER_LOW + low * _MULTIPLIER_HIGH
    sum_low = new_low + rng[3]
    carry = _u64(1) if sum_low < new_low else _u64(0)
    rng[0], rng[1] = new_high + rng[2] + carry, sum_low
    turn = rng[0] >> _u64(58)
    mixed = rng[0] ^ rng[1]
    return (mixed >> turn) | (mixed << ((_u64(64) - turn) & _u64(63)))


@strict_entry
def random(rng: Array) -> Any:
    """Return a number from 0 to 1, as `Generator.random()`."""
    return np.float64(next_word(rng) >> _u64(11)) * (1.0 / 9007199254740992.0)


@strict_entry
def uniform(rng: Array, low: float, high: float) -> Any:
    """Return a number from `low` to `high`, as `Generator.uniform(low, high)`."""
    return low + (high - low) * random(rng)


@strict_entry
def integers(rng: Array, most: int, half: Array) -> Any:
    """Return a number from 0 to `most - 1`, as `Generator.integers(most)`.

    NumPy takes 32 bits for it: the lower half of a word, and the upper one for the next number (Lemire 2019,
    https://arxiv.org/abs/1805.10941).

    Args:
        rng: see `next_word`.
        most: from 1 to 2**32.
        half: (2,) uint64: whether the upper half of a word is left, and that; zeros at the beginning of an episode.
    """
    count = _u64(most)
    while most > 1:
        if half[0]:
            half[0], drawn = _u64(0), half[1]
        else:
            word = next_word(rng)
            half[0], half[1], drawn = _u64(1), word >> _32, word & _LOW_32
        product = drawn * count
        if product & _LOW_32 >= (_u64(1 << 32) - count) % count:  # below it some numbers would come more often
            return np.int64(product >> _32)
    return np.int64(0)


@strict_kernel
def seed_generator(seed: int, rng: Array) -> None:
    """Fill the words of the generator `numpy.random.default_rng(seed)`.

    Args:
        seed: from 0 to 2**63 - 1.
        rng: (4,) uint64; filled.
    """
    entropy, words = np.zeros(4, np.uint64), np.empty(8, np.uint64)
    entropy[0], entropy[1] = _u64(seed) & _LOW_32, _u64(seed) >> _32
    seed_words(entropy, words)
    for k in range(4):  # two for the state, two for the increment, which is odd
        rng[k] = words[2 * k] | (words[2 * k + 1] << _32)
    rng[2] = (rng[2] << _u64(1)) | (rng[3] >> _u64(63))
    rng[3] = (rng[3] << _u64(1)) | _u64(1)
    low = rng[1] + rng[3]
    rng[0], rng[1] = rng[0] + rng[2] + (_u64(1) if low < rng[3] else _u64(0)), low
    next_word(rng)
