"""JSON without raw characters that end a line for some clients."""

LINE_ENDS = [(letter.encode(), b"\\u%04x" % ord(letter)) for letter in "\x85\u2028\u2029"]


def escape_line_ends(data: bytes) -> bytes:
    """Some clients end a line at these raw characters."""
    if not data.isascii():
        for raw, escaped in LINE_ENDS:
            data = data.replace(raw, escaped)
    return data
