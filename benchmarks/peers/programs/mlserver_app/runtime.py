"""MLServer with adaptive batching: up to 32 requests, at most a millisecond."""

from __future__ import annotations

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Sage(MLModel):
    async def load(self) -> bool:
        from pyg_model import Model

        self.model = Model()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        scores = self.model.predict(NumpyCodec.decode_input(payload.inputs[0]))
        outputs = [NumpyCodec.encode_output("scores", scores)]
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=outputs)
