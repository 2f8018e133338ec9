"""FastAPI application: endpoints for translation, attention maps, trees, health and metrics, and a web page."""

import asyncio
import contextlib
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from keras_transformer import __version__
from keras_transformer.data.language_tags import is_blank, tag_texts
from keras_transformer.server.batcher import Batcher, QueueFull
from keras_transformer.server.engines import BATCH_ROWS
from keras_transformer.server.limits import LimitRequests, Limits
from keras_transformer.server.metrics import CountRequests, Metrics
from keras_transformer.server.stream import StreamedObjects, describe_error
from keras_transformer.server.texts import complete_answer, named_sentences, split_into_sentences, streamed_objects
from keras_transformer.utils.errors import UserError, texts_named

POLICY = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:"
MAX_INLINE_CHARACTERS = 1000
"""Maximum number of characters of a request that the event loop itself tokenizes. A thread tokenizes longer ones."""
MAX_SHOWN = 100
"""Maximum number of tokens per text for an attention map. The size of a map grows quadratically with the length."""
MAX_DRAWN = 1000
"""Maximum number of words of a tree to draw."""


class Translation(BaseModel):
    """A translation or a bracketed tree, with its score, which is null if a parser skipped the sentence."""

    text: str
    score: float | None


class Translations(BaseModel):
    """The translations of each text, best first.

    The server translates each line of a text separately and joins the translations with line breaks. The score is the
    mean over the non-blank lines, or over their sentences if the server splits lines into sentences.
    """

    translations: list[list[Translation]]


class Picture(BaseModel):
    """A drawing of a tree."""

    svg: str


class Health(BaseModel):
    """Health status of the server."""

    status: str


class ModelInfo(BaseModel):
    """Description of the model, and the limits per request and per text.

    `languages` lists the target languages of a multilingual model.
    """

    model: str
    problem: str
    version: str
    trees: bool
    attention: bool
    languages: list[str]
    max_nbest: int
    max_texts: int
    max_characters: int
    max_tokens: int | None


class ErrorResponse(BaseModel):
    """Error message of one or two sentences."""

    error: str


ERRORS = {status: {"model": ErrorResponse} for status in (400, 408, 413, 422, 500, 503, 504)}
STREAM: dict[int, Any] = {200: {"content": {StreamedObjects.media_type: {}}}}


def application(engine, limits=None, batch_tokens=4096, wait=0.005, language=None):
    """Return the ASGI application.

    Args:
        engine: `Engine`.
        limits: `Limits` (default `Limits()`).
        batch_tokens: Maximum number of tokens per batch, including padding.
        wait: Maximum time in seconds that a text waits for other texts before its batch starts.
        language: Source language code for splitting lines into sentences, which the server translates separately; None
            to translate whole lines.
    """
    limits = limits or Limits()
    batcher = Batcher(
        lambda items: _translate(engine, items), batch_tokens=batch_tokens, batch_rows=BATCH_ROWS, wait=wait,
        max_waiting=limits.waiting, workers=engine.workers, observe=lambda *batch: metrics.add_batch(*batch),
    )  # fmt: skip
    metrics = Metrics(lambda: len(batcher))

    @contextlib.asynccontextmanager
    async def lifespan(app):
        async with batcher.running():
            yield

    app = FastAPIOffline(
        title="keras_transformer", version=__version__, description="Translates texts with a trained Transformer.",
        lifespan=lifespan, redoc_url=None, favicon_url="data:,", redirect_slashes=False,
    )  # fmt: skip
    app.add_middleware(LimitRequests, limits=limits)
    app.add_middleware(CountRequests, metrics=metrics)
    _add_exception_handlers(app, metrics)
    _add_pages(app)
    Text = Annotated[StrictStr, Field(max_length=limits.characters)]

    class TranslateRequest(BaseModel):
        """Texts of one or more lines, the number of translations per text, and the target language.

        The target language is for multilingual models only. It does not apply to lines that begin with a language tag,
        such as <2de>. With `stream`, the answer arrives sentence by sentence.
        """

        model_config = ConfigDict(extra="forbid")
        texts: Annotated[list[Text], Field(min_length=1, max_length=limits.texts)]
        nbest: Annotated[StrictInt, Field(ge=1, le=engine.max_nbest)] = 1
        to: StrictStr | None = None
        stream: StrictBool = False

    class Pair(BaseModel):
        """A text, its translation, and for multilingual models the target language."""

        model_config = ConfigDict(extra="forbid")
        source: Text
        target: Text
        to: StrictStr | None = None

    class Tree(BaseModel):
        """A bracketed tree, such as (S (NP (PRP it)) (VP (VBZ works)))."""

        model_config = ConfigDict(extra="forbid")
        tree: StrictStr  # no maximum length, because a tree is longer than its sentence

    def prepare(texts, to):
        """Return the texts split into tagged sentences, {name: sentence}, and the number of tokens of each sentence."""
        texts = split_into_sentences(texts, language, engine, to)
        named = named_sentences(texts)
        _check_count(len(named), limits.waiting, "sentences")
        return texts, named, _checked_lengths(engine, named, engine.max_tokens)

    schema = {"content": {"application/json": {"schema": TranslateRequest.model_json_schema()}}, "required": True}

    @app.post(
        "/translate", response_model=Translations, responses=STREAM | ERRORS, openapi_extra={"requestBody": schema}
    )
    async def translate(request: Request):
        r"""Translate texts, each line of a text separately.

        A translation has the same lines as its text, separated by \n, without a trailing line break. Blank lines stay
        blank, and the translation of a blank text is empty. If the server splits lines into sentences, it joins the
        translations of the sentences.

        With `stream`, the answer contains one JSON object per line, first an object for each sentence, in the order of
        the texts: {"position": [0, 0, 0], "translations": […]}. The position consists of the indices of the text, of
        the line in the text and of the sentence in the line. The last line is the complete answer, as without `stream`,
        or an error: {"error": "…", "status": 500}. An error before the first sentence has its usual status and body.
        """
        query = await _parsed_body(request, TranslateRequest)
        texts = [text.splitlines() if text.strip() else [""] for text in query.texts]
        _check_count(
            sum(not is_blank(line, engine.tags) for lines in texts for line in lines), limits.texts, "non-blank lines"
        )
        is_short = sum(map(len, query.texts)) <= MAX_INLINE_CHARACTERS
        prepared = prepare(texts, query.to) if is_short else await asyncio.to_thread(prepare, texts, query.to)
        texts, named, tokens = prepared
        items = [(name, sentence, query.nbest) for name, sentence in named.items()]
        if query.stream:
            objects = streamed_objects(texts, batcher.queued(items, tokens, limits.seconds, gradually=True))
            return StreamedObjects(await _unless_disconnected(request, anext(objects)), objects)
        outputs = await _unless_disconnected(request, batcher.results(items, tokens, limits.seconds))
        return JSONResponse(complete_answer(texts, outputs))

    if engine.shows_attention:

        @app.post("/attention", responses=ERRORS)
        async def attention(pair: Pair, request: Request):
            """Return the attention weights of a translation. Line breaks count as spaces."""
            with texts_named(["source"]):
                (source,) = tag_texts([pair.source], pair.to, engine.tags)
            await asyncio.to_thread(_checked_lengths, engine, {"source": source, "target": pair.target}, MAX_SHOWN)
            call = batcher.call(engine.attention, source, pair.target)
            return JSONResponse(await _unless_disconnected(request, call))

    if engine.trees:

        @app.post("/tree", response_model=Picture, responses=ERRORS)
        def tree(query: Tree):
            """Draw a tree as SVG."""
            from keras_transformer.parsing.drawing import svg_drawing
            from keras_transformer.parsing.tree import tree_of

            drawn = tree_of(query.tree)
            _check_count(len(drawn.words()), MAX_DRAWN, "words", "tree")
            return {"svg": svg_drawing(drawn)}

    @app.get("/model")
    async def model() -> ModelInfo:
        """Describe the model and its limits."""
        return ModelInfo(
            **engine.about, version=__version__, trees=engine.trees, attention=engine.shows_attention,
            languages=list(engine.tags), max_nbest=engine.max_nbest, max_texts=limits.texts,
            max_characters=limits.characters, max_tokens=engine.max_tokens,
        )  # fmt: skip

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", responses={503: {"model": ErrorResponse}})
    async def healthz() -> Health:
        """Report whether the server can translate texts."""
        if not batcher.is_alive(2 * limits.seconds):
            raise HTTPException(503, "The server no longer translates texts. Restart it.")
        return Health(status="ok")

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def prometheus_metrics():
        """Return metrics in Prometheus' text format."""
        return Response(metrics.text(), media_type=metrics.media_type)

    return app


async def _parsed_body(request, model):
    """Return the body of a request as an instance of a pydantic model. FastAPI's own parsing takes more time.

    Raises:
        HTTPException: The content type is not JSON, or the client disconnected. A web page from another site cannot
            send the content type of JSON, so the check blocks requests from such pages.
        RequestValidationError: The body is not JSON, or does not match the model.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(422, "The Content-Type must be application/json.")
    try:
        return model.model_validate_json(await request.body())
    except ClientDisconnect:
        raise HTTPException(499, "The client disconnected.") from None
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in errors]) from None


async def _unless_disconnected(request, coroutine):
    """Return the result of a coroutine, or cancel it if the client disconnects.

    Raises:
        HTTPException: The client disconnected. Its status, 499, appears only in the metrics.
    """
    work, gone = asyncio.ensure_future(coroutine), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise HTTPException(499, "The client disconnected.")
        return work.result()
    finally:
        work.cancel()
        gone.cancel()


def _translate(engine, items):
    """Return the outputs for each item (name, text, nbest).

    Run a separate search for each value of `nbest`, because the value may affect the results.
    """
    outputs = [None] * len(items)
    for nbest in {nbest for *_, nbest in items}:
        rows = [i for i, item in enumerate(items) if item[2] == nbest]
        with texts_named([items[i][0] for i in rows]):
            found = engine.translate([items[i][1] for i in rows], nbest)
        for i, several in zip(rows, found):
            outputs[i] = several
    return outputs


def _check_count(count, limit, what, name="texts"):
    if count > limit:
        raise UserError(f"{name} must have at most {limit:,} {what}, got {count:,}. Send fewer at a time.")


def _checked_lengths(engine, named, limit):
    """Return the number of tokens in each text of {name: text}.

    Raises:
        UserError: A text has more than `limit` tokens, or too many marked spans.
    """
    with texts_named([*named]):
        tokens = engine.lengths([*named.values()])
    for name, count in zip(named, tokens):
        if limit is not None and count > limit:
            raise UserError(f"{name} must have at most {limit:,} tokens, got {count:,}. Split it into sentences.")
    return tokens


def _add_exception_handlers(app: FastAPI, metrics: Metrics):
    """Add handlers that answer each error with an `ErrorResponse` without details about the server's machine."""

    def respond(status, sentence, headers=None):
        return JSONResponse({"error": sentence}, status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request, error):
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))[:80]
        return respond(400 if first["type"] == "json_invalid" else 422, f"{field!r}: {first['msg']}")

    @app.exception_handler(StarletteHTTPException)
    async def refused(request, error):
        return respond(error.status_code, error.detail, error.headers)

    @app.exception_handler(QueueFull)
    async def full(request, error):
        metrics.refused.inc()
        return respond(503, str(error), {"Retry-After": "1"})

    @app.exception_handler(UserError)
    @app.exception_handler(Exception)
    async def failed(request, error):
        return respond(*describe_error(error))


def _add_pages(app: FastAPI):
    """Add routes for the web page and its static files."""
    index = resources.files("keras_transformer.server") / "page" / "index.html"

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page():
        return FileResponse(str(index), headers={"Content-Security-Policy": POLICY})

    packages: list = [("keras_transformer.server", "page"), ("keras_transformer.visualization", "page")]
    app.mount("/static", StaticFiles(packages=packages))
