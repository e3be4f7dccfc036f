"""Pickles, one instruction after the other."""

import pickle


def text(value: str) -> bytes:
    """Puts a string on the stack."""
    encoded = value.encode()
    return pickle.BINUNICODE8 + len(encoded).to_bytes(8, "little") + encoded


def named(module: str, attribute: str) -> bytes:
    """Puts a class or function on the stack."""
    return text(module) + text(attribute) + pickle.STACK_GLOBAL
