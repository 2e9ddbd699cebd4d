"""How does the receiver of a translated publish see where it was first sent to?

A translated publish carries one header with the original and the new pair; a delivery gets the original pair back as
long as it still bears the new one. Only values are handled here: taking headers of that name out of what producers
send, and putting this one in, is for the wire. Source: the messenger-addressing specification, 3.3.
"""

from __future__ import annotations

from proxy.addressing.address import without_credentials
from proxy.addressing.table import AddressTable
from proxy.addressing.targets import Publication
from proxy.values import Value

#: The header; producers can't forge it, since every header of this name that they send is taken out.
HEADER = b"x-original-address"
_FIELDS = (b"exchange", b"routing-key", b"new-exchange", b"new-routing-key")


def record(original: Publication, new: Publication) -> Value | None:
    """The header's value for a publish; None where exchange and key are unchanged, which needs no header."""
    if original == new:
        return None
    return Value("F", tuple((name, Value("S", text)) for name, text in zip(_FIELDS, original + new, strict=True)))


def restore(header: Value, delivered: Publication) -> Publication | None:
    """The original pair for a delivery that bears the header.

    Args:
        header: the header's value.
        delivered: exchange and key in the broker's own frame.

    Returns:
        the pair to put into the frame, while the header is taken out; None where the message was moved since it was
        translated (dead-lettered, for one) or the header is not ours, and the frame must be left alone.
    """
    if header.letter != "F" or not isinstance(header.value, tuple):
        return None
    fields = tuple(name for name, _ in header.value)
    texts = tuple(value.value for _, value in header.value if value.letter == "S")
    if fields != _FIELDS or len(texts) != len(_FIELDS):
        return None
    return Publication(*texts[:2]) if texts[2:] == tuple(delivered) else None


def visible(address: bytes, rewrites: AddressTable | None = None) -> bytes:
    """The original address as a receiver may see it.

    Args:
        address: the original address.
        rewrites: a table of its own for this, where an operator has set one: an address that no rule of it is for is
            shown without its credentials. None, the default: the address is shown as it was given.
    """
    if rewrites is None:
        return address
    rewritten = rewrites.translate(address)
    return without_credentials(address) if rewritten is None else rewritten.address or b""
