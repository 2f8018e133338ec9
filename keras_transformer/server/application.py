"""The web application: translations, pictures of attention and trees, health, measures, and a page for people."""

import asyncio
import contextlib
import statistics
from importlib import resources
from typing import Annotated

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr
from starlette.exceptions import HTTPException

from keras_transformer import __version__
from keras_transformer.server.batcher import Batcher, QueueFull, until
from keras_transformer.server.engines import BATCH_ROWS, Output
from keras_transformer.server.limits import DEADLINE, BoundedBodies, Limits
from keras_transformer.server.metrics import Measures
from keras_transformer.utils.errors import NonFiniteOutputs, UserError

PAGES = {
    "page.js": ("keras_transformer.server.page", "text/javascript"),
    "page.css": ("keras_transformer.server.page", "text/css"),
    "attention_view.js": ("keras_transformer.visualization", "text/javascript"),
    "attention_view.css": ("keras_transformer.visualization", "text/css"),
}
"""The files of the page: where each lies, and its type."""
SWAGGER = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
"""Of the page that shows the interface: from the package fastapi-offline, so that nothing comes from elsewhere."""
POLICY = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:"
GONE = 499
"""The status, which nobody reads, of a request whose client has gone."""
MOST_SHOWN = 100
"""Most tokens of a text whose attention is shown: the answer grows with their square."""


class _Answer(BaseModel):
    """What is answered; nothing else is ever in it."""

    model_config = ConfigDict(extra="forbid")


class Translation(_Answer):
    """One translation, or a tree in brackets, and its score: null where there was no search."""

    text: str
    score: float | None


class Translations(_Answer):
    """Translations of each text, best first.

    A text of several lines has the translations of its lines, joined with line breaks. Its score is the mean of the
    scores of its lines that are not blank.
    """

    translations: list[list[Translation]]


class Picture(_Answer):
    """A tree as a picture."""

    svg: str


class Health(_Answer):
    """Whether texts are translated."""

    status: str


class ModelInfo(_Answer):
    """What is served, and its limits: texts of a request, characters and tokens of a text, translations of a text."""

    model: str
    problem: str
    version: str
    trees: bool
    attention: bool
    most_nbest: int
    most_texts: int
    most_characters: int
    most_tokens: int | None


class ErrorResponse(_Answer):
    """What is wrong, in one sentence."""

    error: str


def application(engine, limits=None, batch_tokens=4096, wait=0.005):
    """Returns the application, for ASGI.

    Args:
        engine: `Engine`.
        limits: `Limits`; by default the usual.
        batch_tokens: Most tokens of the texts that are translated together, padding included.
        wait: Seconds that a text may wait for others to be translated with it.
    """
    limits = limits or Limits()
    measures = Measures()
    batcher = Batcher(
        lambda asked: _translated(engine, asked), batch_tokens=batch_tokens, batch_rows=BATCH_ROWS, wait=wait,
        most_waiting=limits.waiting, observe=measures.batch,
    )  # fmt: skip
    measures.watch_queue(lambda: len(batcher))

    @contextlib.asynccontextmanager
    async def lifespan(app):
        async with batcher.running():
            yield

    app = FastAPI(
        title="keras_transformer", version=__version__, description="Translates texts with a trained Transformer.",
        lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    _add_errors(app)
    _add_pages(app)
    Text = Annotated[StrictStr, Field(max_length=limits.characters)]

    class TranslateRequest(BaseModel):
        """Texts, of one line or several, and how many translations are wanted of each."""

        model_config = ConfigDict(extra="forbid")
        texts: Annotated[list[Text], Field(min_length=1, max_length=limits.texts)]
        nbest: Annotated[StrictInt, Field(ge=1, le=engine.most_nbest)] = 1

    class Pair(BaseModel):
        """A text and its translation."""

        model_config = ConfigDict(extra="forbid")
        source: Text
        target: Text

    class Tree(BaseModel):
        """A tree in brackets."""

        model_config = ConfigDict(extra="forbid")
        tree: StrictStr  # as long as a request may be: a tree is longer than its sentence

    async def answered(request, work):
        """The result of some work of the seconds that are left; None if the client goes meanwhile."""
        left = max(request.scope[DEADLINE] - asyncio.get_running_loop().time(), 0.001)
        try:
            return await until(work(left), _gone(request), left)
        except TimeoutError:
            raise HTTPException(
                504, f"there was no answer within {limits.seconds:g} seconds; try again later"
            ) from None
        except QueueFull as full:
            measures.refused()
            raise HTTPException(503, str(full), {"Retry-After": str(full.seconds)}) from None

    @app.post("/translate", response_model=Translations, responses=_may_say(400, 408, 413, 422, 500, 503, 504))
    async def translate(asked: TranslateRequest, request: Request):
        r"""Translate texts, each line of a text separately.

        A translation has the line breaks of its text, as \n, without one at the end. Blank lines stay blank, and a
        blank text has an empty translation.
        """
        lines = [text.splitlines() if text.strip() else [""] for text in asked.texts]
        filled = {_place(i, k, several): line for i, several in enumerate(lines) for k, line in _filled(several)}
        if len(filled) > limits.texts:
            most = f"{limits.texts} non-blank lines"
            raise UserError(f"texts must have at most {most}, got {len(filled):,}. Send fewer at a time.")
        tokens = await asyncio.to_thread(engine.lengths, list(filled.values()))
        _check_lengths(filled, tokens, engine.most_tokens)
        items = [(line, asked.nbest) for line in filled.values()]
        found = await answered(request, lambda seconds: batcher.results(items, tokens, seconds))
        if found is None:
            return Response(status_code=GONE)
        outputs = iter(found)
        return JSONResponse({"translations": [_joined(several, outputs) for several in lines]})

    if engine.shows_attention:

        @app.post("/attention", responses=_may_say(400, 408, 413, 422, 500, 503, 504))
        async def attention(pair: Pair, request: Request):
            """What each token of a translation attends to, for the page's picture. Line breaks count as spaces."""
            tokens = await asyncio.to_thread(engine.lengths, [pair.source, pair.target])
            _check_lengths(("source", "target"), tokens, MOST_SHOWN)
            work = engine.attention, pair.source, pair.target
            found = await answered(request, lambda seconds: batcher.in_turn(*work))
            return Response(status_code=GONE) if found is None else JSONResponse(found)

    if engine.trees:

        @app.post("/tree", response_model=Picture, responses=_may_say(400, 408, 413, 422))
        async def tree(asked: Tree):
            """Draws a tree."""
            return {"svg": await asyncio.to_thread(_drawing, asked.tree)}

    @app.get("/model", response_model=ModelInfo)
    async def model():
        """What is served."""
        return {
            **engine.about, "version": __version__, "trees": engine.trees, "attention": engine.shows_attention,
            "most_nbest": engine.most_nbest, "most_texts": limits.texts, "most_characters": limits.characters,
            "most_tokens": engine.most_tokens,
        }  # fmt: skip

    @app.get("/healthz", response_model=Health, responses=_may_say(503))
    async def healthz():
        """Whether texts are translated."""
        if not batcher.works(2 * limits.seconds):
            raise HTTPException(503, "texts are not translated any more; start the server again")
        return {"status": "ok"}

    app.head("/healthz", include_in_schema=False)(healthz)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics():
        """Measures in Prometheus' format."""
        return Response(measures.text(), media_type=measures.media_type)

    return measures.around(BoundedBodies(app, limits), {route.path for route in app.routes})


def _drawing(text):
    from keras_transformer.parsing.drawing import svg_drawing
    from keras_transformer.parsing.tree import tree_of

    return svg_drawing(tree_of(text))


def _translated(engine, asked):
    """The outputs of each (text, nbest): texts of one nbest together, for a search may depend on it."""
    outputs = [None] * len(asked)
    for nbest in {nbest for _, nbest in asked}:
        rows = [i for i, (_, wanted) in enumerate(asked) if wanted == nbest]
        for i, found in zip(rows, engine.translate([asked[i][0] for i in rows], nbest)):
            outputs[i] = found
    return outputs


def _filled(lines):
    """Return (index, line) of the lines that are not blank."""
    return [(k, line) for k, line in enumerate(lines) if line.strip()]


def _place(text, line, lines):
    """Return the name of a line in an error message: indices of texts start at 0, line numbers at 1."""
    return f"texts[{text}]" if len(lines) == 1 else f"line {line + 1} of texts[{text}]"


def _joined(lines, found):
    """Return the translations of a text, best first, each made of one translation of every line.

    Args:
        lines: The lines of the text.
        found: Iterator over the outputs of the lines that are not blank, of this text and those after it.
    """
    outputs = [next(found) if line.strip() else [Output("", 0.0)] for line in lines]
    joined = []
    for n in range(max(map(len, outputs))):
        best = [several[min(n, len(several) - 1)] for several in outputs]  # a line with fewer repeats its last one
        scores = [best[k].score for k, _ in _filled(lines)] or [0.0]
        score = None if None in scores else statistics.fmean(scores)
        joined.append({"text": "\n".join(one.text for one in best), "score": score})
    return joined


def _check_lengths(names, tokens, most):
    for name, count in zip(names, tokens):
        if most is not None and count > most:
            raise UserError(f"{name} must have at most {most:,} tokens, got {count:,}. Split it into sentences.")


async def _gone(request):
    """Ends when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _may_say(*statuses):
    return {status: {"model": ErrorResponse} for status in statuses}


def _add_errors(app):
    """Every error is `ErrorResponse`: one sentence, and nothing of this machine."""

    def said(status, sentence, headers=None):
        return JSONResponse({"error": sentence}, status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request, error):
        return said(*_sentence(error.errors()[0]))

    @app.exception_handler(HTTPException)
    async def refused(request, error):
        usual = {404: "this path does not exist; see /docs", 405: "this path does not accept this method; see /docs",
                 400: "the request's body is not JSON in UTF-8"}  # fmt: skip
        return said(error.status_code, usual.get(error.status_code, error.detail), error.headers)

    @app.exception_handler(NonFiniteOutputs)
    async def broken(request, error):
        return said(500, str(error))

    @app.exception_handler(UserError)
    async def impossible(request, error):
        sentence = str(error)  # which may show what it was given
        return said(422, sentence if len(sentence) < 250 else f"{sentence[:120]} … {sentence[-120:]}")

    @app.exception_handler(Exception)
    async def failed(request, error):
        return said(500, "something went wrong here; the server's log tells more")


def _sentence(error):
    """The status and the sentence of one of pydantic's errors."""
    kind, place, limits = error["type"], error["loc"][1:], error.get("ctx", {})
    if kind == "json_invalid":
        return 400, f"the request's body is not JSON: {limits['error']}"
    if not place:
        return 422, 'the request must be a JSON object, with "Content-Type: application/json"'
    where = str(place[0]) + "".join(f"[{part}]" for part in place[1:])
    if kind == "extra_forbidden":
        return 422, f"there is no field {where[:80]!r}"
    said = {
        "missing": "is missing",
        "string_too_long": f"has more than {limits.get('max_length'):,} characters" if "max_length" in limits else "",
        "string_unicode": "is no text: it holds half of a character",
        "string_type": "must be a text",
        "list_type": "must be a list",
        "int_type": "must be a whole number",
        "too_long": f"has more than {limits.get('max_length')} entries",
        "too_short": "is empty",
        "greater_than_equal": f"must be at least {limits.get('ge')}",
        "less_than_equal": f"must be at most {limits.get('le')}",
    }
    return 422, f"{where} {said.get(kind) or 'is wrong: ' + error['msg']}"


def _add_pages(app):
    """The page for people, and the page of the interface."""
    index = resources.files("keras_transformer.server.page").joinpath("index.html").read_text(encoding="utf-8")

    @app.get("/", include_in_schema=False)
    async def page():
        return HTMLResponse(index, headers={"Content-Security-Policy": POLICY})

    app.head("/", include_in_schema=False)(page)

    @app.get("/docs", include_in_schema=False)
    async def docs():
        return get_swagger_ui_html(
            openapi_url="openapi.json", title="keras_transformer", swagger_js_url="static/swagger-ui-bundle.js",
            swagger_css_url="static/swagger-ui.css", swagger_favicon_url="data:,",
        )  # fmt: skip

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str):
        if name in PAGES:
            package, kind = PAGES[name]
            content = resources.files(package).joinpath(name).read_bytes()
        elif name in SWAGGER:
            kind, content = SWAGGER[name], resources.files("fastapi_offline").joinpath("static", name).read_bytes()
        else:
            raise HTTPException(404)
        return Response(content, media_type=kind, headers={"X-Content-Type-Options": "nosniff"})
