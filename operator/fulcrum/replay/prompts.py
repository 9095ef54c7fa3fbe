"""Prompts of a wanted length, made of words: traces carry lengths and prefix hashes, but no text."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Final

from fulcrum.simulation.traffic import PREFIX_BLOCK_TOKENS, Request

_TEXT: Final = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother area
money story fact month lot right study book eye job word business issue side kind head house service friend father
power hour game line end member law car city community name president team minute idea kid body information back
parent face level office door health person art war history party result change morning reason research girl guy
moment air teacher force education foot boy age policy music market sense nation plan college interest death
experience effect use class control field development role effort rate heart drug show leader light voice wife
police mind price report decision son view relationship town road arm difference value building action season
society tax director position player record paper space ground form event official matter center couple site project
activity star table need court oil situation cost industry figure street image phone data picture practice piece
land product doctor wall patient worker news test movie north love support technology
"""
_WORDS: Final = tuple(_TEXT.split())
"""Common English words: each is one token, with its leading space, in the vocabularies of most models."""


class PromptWriter:
    """Writes the prompt of a request; the same seed, index and request give the same text.

    Lengths are approximate: words are counted out by `tokens_per_word`, an average that was measured once.
    """

    def __init__(self, *, tokens_per_word: float, seed: int) -> None:
        if tokens_per_word <= 0:
            raise ValueError(f"tokens_per_word must be above 0, got {tokens_per_word}")
        self._tokens_per_word = tokens_per_word
        self._seed = seed
        self._block = lru_cache(maxsize=4096)(self._uncached_block)

    def write(self, index: int, request: Request) -> str:
        """About `request.prompt_tokens` tokens; equal leading prefix hash ids give an equal leading text."""
        words: list[str] = []
        wanted = max(1, round(request.prompt_tokens / self._tokens_per_word))
        for hash_id in request.prefix_hash_ids:
            if len(words) >= wanted:
                break
            words.extend(self._block(hash_id))
        if len(words) < wanted:
            words.extend(self._words(f"request {index}", wanted - len(words)))
        return " ".join(words[:wanted])

    def _uncached_block(self, hash_id: int) -> tuple[str, ...]:
        return self._words(f"block {hash_id}", round(PREFIX_BLOCK_TOKENS / self._tokens_per_word))

    def _words(self, key: str, count: int) -> tuple[str, ...]:
        return tuple(random.Random(f"{self._seed} {key}").choices(_WORDS, k=count))  # noqa: S311 - text, not a secret
