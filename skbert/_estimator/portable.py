"""Whether an estimator is fitted, and its fitted state as arrays and plain values.

skops takes that state. pickle, joblib and copy take the model as it is instead, with all that
somebody changed in it. Depends on `persistence`; knows no estimator by name.
"""

from __future__ import annotations

import copyreg
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from skbert._core.export.engines import Precision
from skbert._core.export.formats import Format
from skbert._core.models.network import Network
from skbert._estimator import exporting, persistence
from skbert._estimator.card import Card
from skbert._estimator.checks import resolve_max_length
from skbert._estimator.fitted import Fitted
from skbert._estimator.guidance import GuidedEstimator
from skbert._estimator.hub import upload
from skbert.exceptions import ModelError

__all__ = ["PortableEstimator"]


class PortableEstimator(GuidedEstimator):
    """An estimator that is fitted once it has its `Fitted`, and whose state can be plain."""

    if TYPE_CHECKING:  # assigned in the last step of a fit
        _fitted: Fitted
        _assigned: Mapping[str, Any]  # attributes that were set before the first fit

    def __sklearn_is_fitted__(self) -> bool:
        """Fitted once a fit went through to its end."""
        return hasattr(self, "_fitted")

    def _state(self) -> Fitted:
        """What was learned, as it is now; NotFittedError where nothing was."""
        if not self.__sklearn_is_fitted__():
            check_is_fitted(self)
        return self._fitted

    def save_pretrained(self, path: str | os.PathLike[str], *, card: Card = None) -> None:
        """Write a folder for transformers, or for sentence-transformers, without code in it.

        Where transformers has a class with such a head, the folder is its checkpoint. Else, as for
        a head over the mean of a BERT's tokens, it is a folder of sentence-transformers:
        ``SentenceTransformer(path).encode(texts)`` gives the logits, and ``AutoModel`` opens the
        encoder. ``from_pretrained`` opens both.

        Parameters
        ----------
        path : str or path-like
            Folder to write to.
        card : bool, dict or None, default=None
            Whether to write a model card, ``README.md``, with parameters and passes of the fit,
            labels, and versions of libraries. A dict adds to it: ``title``, ``description``,
            ``data`` and ``license`` as str, ``figures`` as a dict of numbers, ``language`` and
            ``tags`` as str or lists of them.

        Raises
        ------
        InputError, InputTypeError
            If the card has an entry that no card has, or one of a wrong type.
        ModelError
            If the head reads feature columns, attention heads were pruned, positions are
            relative, neither library has modules for the head, or numbers lie too far from 0 for
            float32. Use ``save`` or ``export`` instead.
        SaveError
            If the path is invalid, you may not write there, the disk is full, or the folder holds
            what ``save`` or ``export`` wrote.
        """
        fitted = self._state()
        if fitted.network.head.n_features:
            raise ModelError(
                "The head reads feature_columns beside the texts, and transformers has no class "
                "with such a head. Use save(path) to keep the estimator as it is, export(path) "
                "to predict without torch, or fit with feature_columns=None."
            )
        persistence.export(self, self._exported(fitted), path, card)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        card: Card = True,
        private: bool | None = None,
        token: str | bool | None = None,
        commit_message: str | None = None,
    ) -> str:
        """Upload what ``save_pretrained`` writes to the Hugging Face hub.

        Parameters
        ----------
        repo_id : str
            Name of the model on the hub, ``"owner/name"``. It is created if it is not there.
        card : bool, dict or None, default=True
            The model card, as for ``save_pretrained``.
        private : bool or None, default=None
            Whether a new model is private; None for what the owner's settings say.
        token : str, bool or None, default=None
            Access token; None for that of ``hf auth login`` or of ``HF_TOKEN``.
        commit_message : str or None, default=None
            Message of the commit; None for that of huggingface_hub.

        Returns
        -------
        url : str
            Address of the commit.

        Raises
        ------
        ModelError, InputError, InputTypeError
            As for ``save_pretrained``.
        SaveError
            If the hub refuses the name, the token or the files, or does not answer.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, card=card)
            return upload(
                folder, repo_id, private=private, token=token, commit_message=commit_message
            )

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        format: Format = "onnx",  # noqa: A002 - the word that users expect
        precision: Precision = "float32",
        X: object = None,
    ) -> None:
        """Write a folder that predicts without torch, by ``skbert.runtime.load``.

        The folder holds the model as a graph with its head and its pooling, the tokenizer, and all
        else that predictions depend on, such as labels, thresholds and temperatures. Nothing in it
        is pickled. The extra of the format has to be installed: ``pip install 'skbert[onnx]'`` or
        ``'skbert[openvino]'``. In a pipeline, export the estimator alone, as in
        ``pipeline[-1].export(path)``.

        Parameters
        ----------
        path : str or path-like
            Folder to create, or one that ``export`` or ``save`` created before.
        format : {"onnx", "openvino"}, default="onnx"
            The engine that will run the graph: ONNX Runtime or OpenVINO.
        precision : {"float32", "int8"}, default="float32"
            Type of the matrix products. ``"int8"`` needs ``X``, and is refused where the
            predictions would differ too much.
        X : array-like or None, default=None
            Rows such as ``predict`` or ``transform`` takes. The folder's predictions for them are
            compared with the estimator's, and the agreement is written to the folder. With
            ``"int8"`` the scales are chosen by 512 of them at most, and the others are compared,
            or all if fewer than 200 are left: pass a thousand rows like those that will be
            predicted, and ten at least.

        Raises
        ------
        InputError
            If ``format`` or ``precision`` is unknown, or ``X`` is missing for ``"int8"``, or is
            not as in ``fit``.
        ModelError
            If a library is missing, the model has modules that cannot be exported, or the folder
            would give other predictions: other labels, tags or answers for more than 0.5 % of
            them, vectors with a mean cosine below 0.99, or numbers with an R² below 0.99 of the
            estimator's.
        SaveError
            If the folder holds other files or cannot be written, or the disk is full.

        See Also
        --------
        skbert.runtime.load : Open the folder.

        Examples
        --------
        >>> import skbert.runtime
        >>> from skbert import BertTransformer
        >>> transformer = BertTransformer().fit(["a parcel", "a letter"])
        >>> transformer.export("vectors")
        >>> skbert.runtime.load("vectors").transform(["a parcel"]).shape
        (1, 384)
        """
        check_is_fitted(self)
        own: Any = self
        exporting.export(own, path, format, precision, X)

    def _exported(self, fitted: Fitted) -> Network:
        """The network whose outputs are what the estimator predicts."""
        return fitted.network

    def __getstate__(self) -> dict[str, Any]:
        """Give what ``save`` writes, where the estimator is fitted."""
        state: dict[str, Any] = super().__getstate__()
        return persistence.pack(self) if "_fitted" in state else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state of either kind; that of ``save`` is checked like a saved folder."""
        if persistence.is_packed(state):
            state = vars(persistence.unpack(type(self), state))
        super().__setstate__(state)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Pickle and copy the model itself."""
        del protocol
        return copyreg.__newobj__, (type(self),), super().__getstate__()  # type: ignore[attr-defined]

    def _after_load(self, folder: Path | None) -> None:  # noqa: ARG002 - subclasses use it
        """Check and complete a loaded estimator; ``folder`` is None where there is no folder."""
        resolve_max_length(self._fitted.network.max_length, self._fitted.task.max_length)
