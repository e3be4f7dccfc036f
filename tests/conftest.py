"""What all tests share."""

from hypothesis import settings

settings.register_profile("rankline", deadline=None)  # a busy machine proves nothing wrong
settings.load_profile("rankline")
