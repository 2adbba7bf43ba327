"""For tests of code that uses this library: virtual time, recordings, a check of backends.

Needs the extra ``testing``: ``pip install 'mellea-like[testing]'``.
"""
