"""Builds the files of a release.

``source`` copies the tracked files, and ``image`` builds the container image.
"""
