"""Builds the files of a release: ``python -m deploy.release``, which is ``make dist``.

``source`` copies the tracked files, ``packages`` builds sdist, wheels and chart, ``image`` builds the container image,
and ``inventory`` lists what they contain: SBOM, licences and checksums.
"""
