"""The `GNNService` resource, one file per part of `spec`: what a user writes for `gnnserve run` and `kubectl apply`.

Pydantic, because this is where a person's text enters: its messages name the field and the value. The CRD is generated
from these types (`schema.py`). A rule over several fields is declared once (`rules.py`) and checked by the API server
and here. A field enters with the work that makes it do something.
"""
