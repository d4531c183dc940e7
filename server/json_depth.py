"""The bound of JSON's depth, on any interpreter: their own differ."""

MAX_DEPTH = 256

TOO_DEEP = f"the request's body is nested more than {MAX_DEPTH} deep; flatten it"
