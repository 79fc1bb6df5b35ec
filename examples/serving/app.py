"""Serve a classifier: concurrent requests share batches, and limits keep the server alive.

    python examples/serving/app.py FOLDER --port 8000

FOLDER is what ``export`` wrote; the process loads neither torch nor scikit-learn. Needs fastapi
and uvicorn: ``pip install "skbert[serving]"``.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import uvicorn
from batching import Batches, FullError
from engines import ENGINES, Classifier
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, StringConstraints

MOST_BYTES = 1_000_000  # of a request
MOST_TEXTS = 64  # of a request
MOST_CHARACTERS = 10_000  # of a text

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


class Texts(BaseModel):
    """What is asked."""

    texts: Annotated[
        list[Annotated[str, StringConstraints(max_length=MOST_CHARACTERS)]],
        Field(min_length=1, max_length=MOST_TEXTS),
    ]


class Predictions(BaseModel):
    """What is answered: the best label of each text, and its probability."""

    labels: list[str]
    probabilities: list[float]


def make_app(classifier: Classifier, **limits: Any) -> FastAPI:
    """The application around a classifier of one label a text; limits are those of Batches."""
    names = names_of(classifier)

    def best(texts: list[str]) -> list[tuple[str, float]]:
        proba = classifier.predict_proba(texts)
        at = proba.argmax(axis=1)
        return [(names[i], float(row[i])) for i, row in zip(at, proba, strict=True)]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Batches(best, **limits) as app.state.batches:
            yield

    app = FastAPI(title="skbert", lifespan=lifespan)
    app.add_middleware(BodyLimit)

    @app.post("/predict")
    async def predict(asked: Texts, request: Request) -> Predictions:
        try:
            found = await request.app.state.batches.results(asked.texts)
        except FullError as full:
            raise HTTPException(503, "too many texts wait", {"Retry-After": "1"}) from full
        except ValueError as error:  # of skbert, about a text
            raise HTTPException(422, str(error)) from error
        labels, probabilities = zip(*found, strict=True)
        return Predictions(labels=list(labels), probabilities=list(probabilities))

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
        """Say what is wrong, without the texts themselves, which may be long or no Unicode."""
        del request
        faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        return JSONResponse({"detail": faults}, 422)

    @app.get("/health")
    async def health(request: Request) -> dict[str, Any]:
        return {"status": "ok", "waiting": request.app.state.batches.n_waiting}

    return app


def names_of(classifier: Classifier) -> list[str]:
    """The labels of a classifier that gives one to each text."""
    if isinstance(classifier.classes_, list) or hasattr(classifier, "thresholds_"):
        raise SystemExit("The classifier gives several labels to a text, and the app answers one.")
    return [str(label) for label in classifier.classes_]


class BodyLimit:
    """Refuses a request whose body is too long, while it arrives."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Any) -> None:
        """Pass a request on; whoever reads more of its body than may be answers 413."""
        n_bytes = 0

        async def counted() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if n_bytes > MOST_BYTES:
                raise HTTPException(413, f"a request has at most {MOST_BYTES} bytes")
            return message

        await self.app(scope, counted if scope["type"] == "http" else receive, send)


def main() -> None:
    """Open the folder and serve it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--engine", choices=ENGINES, default="runtime")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    app = make_app(ENGINES[options.engine](options.folder))
    uvicorn.run(app, port=options.port, log_level="warning", timeout_graceful_shutdown=30)


if __name__ == "__main__":
    main()
