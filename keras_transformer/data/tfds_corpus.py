"""Parallel corpora that TensorFlow Datasets (TFDS) downloads and verifies. The order of the pairs is fixed.

If a corpus is already on disk, `TfdsCorpus.files` works without TFDS and TensorFlow. `TfdsCorpus.pairs` requires both.
"""

import contextlib
import dataclasses
import html
import os
import re
import urllib.error
import urllib.request
from pathlib import Path

from keras_transformer.backend.loading import hidden_stderr
from keras_transformer.utils.errors import UserError
from keras_transformer.utils.files import read_json

BATCH = 1000  # pairs per batch from TensorFlow
ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
INSTALL = "pip install tensorflow-datasets tensorflow importlib_resources"


@dataclasses.dataclass(frozen=True)
class TfdsCorpus:
    """Corpus from TensorFlow Datasets (TFDS), stored in `data_dir`.

        corpus = TfdsCorpus("ted_hrlr_translate/pt_to_en:1.0.0", ("pt", "en"), "data/tensorflow_datasets", …)
        next(corpus.pairs("train"))

    Args:
        name: Name for `tfds.load`: "NAME/CONFIG:VERSION".
        languages: Keys of source and target in the examples.
        data_dir: Directory in which TFDS stores corpora. The environment variable TFDS_DATA_DIR overrides it.
        url: URL of one of the files to download, used to check whether the server is reachable.
        download_size: Total size of the download as text, such as "1.6 GiB".
        plain_files: Description of the plain files that `--raw_dir` accepts instead of this corpus, for messages.
        sgml_splits: Splits whose SGML entities `pairs` must decode, such as WMT's newstest sets, which TFDS reads from
            `.sgm` files without decoding the entities. In the training text, "&amp;" is literal.
    """

    name: str
    languages: tuple[str, str]
    data_dir: str
    url: str
    download_size: str
    plain_files: str
    sgml_splits: tuple[str, ...] = ()

    @property
    def home(self):
        """Directory in which TFDS stores all corpora."""
        return Path(os.path.expanduser(os.environ.get("TFDS_DATA_DIR") or self.data_dir))

    @property
    def folder(self):
        """Directory of this version of the corpus."""
        return self.home.joinpath(*self.name.replace(":", "/").split("/"))

    def files(self):
        """Return the paths of the record and description files. Download the corpus if it is missing.

        Raises:
            UserError: The download fails, or the downloaded data is damaged.
        """
        if not (self.folder / "dataset_info.json").is_file():
            self._fetch()
        return sorted(path for path in self.folder.iterdir() if path.is_file() and not path.name.startswith("."))

    def pairs(self, split):
        """Yield the pairs (source, target) of a split as texts, always in the same order.

        In `sgml_splits`, the function decodes SGML entities.

        Args:
            split: "train", "validation" or "test".

        Raises:
            UserError: TFDS or TensorFlow is not installed, the download fails, or the files are damaged or incomplete.
        """
        self.files()
        tfds, tf = self._import()
        read_json(self.folder / "dataset_info.json", f"remove {self.folder} to build it again")
        from google.protobuf.json_format import ParseError  # TensorFlow installs protobuf

        # TFDS raises ParseError and AssertionError for a damaged description, and KeyError if a language is missing.
        damage = (tf.errors.OpError, ValueError, KeyError, AssertionError, ParseError)
        try:
            # Read one file after the other to keep the order in which TFDS has stored the examples.
            dataset = tfds.load(
                self.name, split=split, data_dir=str(self.home), download=False, shuffle_files=False,
                read_config=tfds.ReadConfig(try_autocache=False, interleave_cycle_length=1),
            )  # fmt: skip
            # One thread is more than twice as fast as several threads, which wait for each other.
            options = tf.data.Options()
            options.autotune.enabled, options.threading.private_threadpool_size = False, 1
            for batch in tfds.as_numpy(dataset.with_options(options).batch(BATCH).prefetch(2)):
                decoded = without_entities if split in self.sgml_splits else bytes.decode
                yield from zip(*(map(decoded, batch[language]) for language in self.languages))
        except damage as error:
            reason = re.sub(r"^\{\{.*?\}\} | \[Op:.*", "", _first_line(error))
            raise UserError(
                f"{self.folder} is damaged ({reason}); remove the folder and rerun the command to build it again"
            ) from None

    def _fetch(self):
        """Download and store the corpus with TFDS."""
        tfds, _ = self._import()
        from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
        from tensorflow_datasets.core.download.extractor import ExtractError
        from tensorflow_datasets.core.download.util import DownloadError

        if not any(self.home.glob("downloads/**/*.INFO")):
            self._check_server()  # without a connection, TFDS would retry for minutes
        again = f"and rerun the command to download it again, or set --raw_dir to {self.plain_files}"
        try:
            tfds.builder(self.name, data_dir=str(self.home)).download_and_prepare()
        except NonMatchingChecksumError as error:
            found = re.match(r"Artifact (\S+), downloaded to (.+), has wrong checksum", str(error))
            url, path = found.groups() if found else (_first_line(error), self.home / "downloads")
            raise UserError(
                f"{self.name}: {url} has the wrong checksum, so the file is incomplete or has changed; "
                f"remove {path} {again}"
            ) from None
        except ExtractError as error:
            raise UserError(f"{self.name}: {_first_line(error)}; remove {self.home / 'downloads'} {again}") from None
        except Exception as error:
            import requests

            if isinstance(error, DownloadError | requests.exceptions.RequestException):
                raise self._unreachable(error) from None
            raise

    def _check_server(self):
        """Send one request to the server to check whether it is reachable.

        Raises:
            UserError: The server does not answer.
        """
        try:
            urllib.request.urlopen(urllib.request.Request(self.url, method="HEAD"), timeout=30).close()
        except urllib.error.HTTPError:
            pass  # the server answered; TFDS reports the details
        except OSError as error:
            raise self._unreachable(getattr(error, "reason", error)) from None

    def _import(self):
        """Return the modules tensorflow_datasets and tensorflow.

        Raises:
            UserError: One of them is not installed.
        """
        try:
            with hidden_stderr():
                import tensorflow as tf
                import tensorflow_datasets as tfds
                from absl import logging

                if os.environ.get("KERAS_BACKEND") == "jax":
                    with contextlib.suppress(RuntimeError):  # raised if TensorFlow has already been used
                        tf.config.set_visible_devices([], "GPU")  # leave GPU memory to JAX
                tf.config.list_physical_devices()
        except ImportError as error:
            raise UserError(
                f"{self.name} needs TensorFlow Datasets, but {error.name or error} is not installed; run "
                f"{INSTALL}, or set --raw_dir to {self.plain_files}"
            ) from None
        logging.set_verbosity(logging.ERROR)  # TFDS logs many warnings
        return tfds, tf

    def _unreachable(self, reason):
        return UserError(
            f"{self.name} is not in {self.home} and cannot be downloaded from {self.url.split('/')[2]} "
            f"({_first_line(reason)}); check the connection and rerun the command to download {self.download_size}, "
            f"or set --raw_dir to {self.plain_files}"
        )


def without_entities(text):
    """Decode UTF-8 bytes, and the SGML entities in the text. Decode each entity once: "&amp;lt;" becomes "&lt;"."""
    return ENTITY.sub(lambda entity: html.unescape(entity[0]), text.decode())


def _first_line(error):
    return str(error).strip().partition("\n")[0] or type(error).__name__
