"""BertTransformer: the vectors of texts, as features for other estimators."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import joblib
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.frozen import FrozenEstimator
from sklearn.utils._param_validation import StrOptions

from skbert._arrays import Array
from skbert._core.attention.pooling import COMBINED, POOLINGS, LayerJoin
from skbert._core.models.network import twin_of
from skbert._core.text.tokens import LongText
from skbert._embedding.opening import (
    configure,
    open_features,
    pca_of,
    vectors_of,
    width,
)
from skbert._embedding.predicting import TransformsTexts
from skbert._embedding.task import TokenFeatures, distinct
from skbert._estimator.bar import ProgressBar
from skbert._estimator.base import COUNT, ROW_HEAD_CONSTRAINTS, TextEstimator, predict_rows
from skbert._estimator.cache import cache_folder
from skbert._estimator.card import Card
from skbert._estimator.fitted import Fitted
from skbert._validation.columns import FitRecord
from skbert._validation.texts import Texts
from skbert.exceptions import InputError

__all__ = ["BertTransformer"]


@dataclass(eq=False, repr=False, kw_only=True)
class BertTransformer(
    TransformsTexts, ClassNamePrefixFeaturesOutMixin, TransformerMixin, TextEstimator
):
    """Turn texts or pairs of texts into vectors, with a BERT that is not trained further.

    The vectors are features for any scikit-learn estimator, and the distance between two vectors
    shows how similar their texts are.

    Parameters
    ----------
    model : str or path-like, default="sentence-transformers/all-MiniLM-L6-v2"
        Folder or id of a checkpoint of BERT or another encoder. An id is looked up in the local
        cache, in the package that the extra ``skbert[offline]`` installs, and only then on the
        Hugging Face hub.
    pooling : {"auto", "pooler", "cls", "mean", "max"}, default="auto"
        How the token vectors of a row are combined into one vector. ``"auto"`` uses what the
        checkpoint declares, as sentence encoders do for single texts; otherwise, and for pairs, it
        uses what is usual for models of its type: BERT's pooler, ``"cls"`` or ``"mean"``.
    layers : int, sequence of int or None, default=None
        Hidden states to read: 0 is the embeddings, 1 the first layer, -1 the last layer. None
        reads the last layer. BERT's pooler reads the last layer only, so with ``layers``
        ``pooling="auto"`` uses ``"mean"`` instead of the pooler.
    layer_join : {"mean", "concat"}, default="mean"
        Average several layers, or concatenate them in the order of ``layers``.
    normalize : bool, default=False
        Scale each vector to length 1, as the last step. Sentence encoders that end with a
        ``Normalize`` module are trained for it; the folder does not turn it on.
    n_components : int or None, default=None
        Number of components that a PCA keeps of the vectors; it is fitted on the distinct texts of
        X in ``fit``. None leaves the vectors as they are.
    max_length : int or None, default=None
        Maximum length of a row in tokens, special tokens included. None uses the limit of the
        model, but at most 384 in ``BertSpanExtractor``, and where training goes on, what the fit
        before used. Long rows take more memory and time.
    long_text : {"truncate", "head_tail", "windows"}, default="truncate"
        What to do with rows that are too long: ``"truncate"`` keeps the start (in a pair, the
        longer text is shortened first), ``"head_tail"`` keeps a quarter from the start and the
        rest from the end, and ``"windows"`` reads overlapping windows and averages their results.
        Fields are shortened one by one, or only the longest is read in windows.
        ``BertChoiceRanker`` does not support ``"windows"``.
    text_columns : str, int, sequence of these, dict or None, default=None
        Columns of X to read, in this order: one column of texts, or two columns of pairs. Three or
        more are fields of one text, each with the name of its column before it; a dict ``{column:
        name}`` gives other names, and makes fields of two columns. All fields of a row have equal
        shares of ``max_length``; what one does not need is shared by the others.
        ``BertSpanExtractor`` reads two columns, ``BertTokenTagger`` and ``BertPretrainer`` read
        one, and ``BertChoiceRanker`` reads the prompt, then its options. None uses all columns.
    missing : {"raise", "empty"}, default="raise"
        Raise an error if texts are missing, or read missing texts as empty texts.
    memory : str, path-like, joblib.Memory or None, default=None
        Folder in which vectors are kept for other folds, candidates, processes and runs with the
        same settings; None keeps none. `BertTransformer` keeps that of each text, so that no text
        is encoded twice. Estimators with ``freeze`` keep what their frozen layers give for all
        rows of a fit, and of a prediction of up to 8,192 rows, to be read for the same rows again.
    precision : {"auto", "float32", "bfloat16", "float16", "float64", "int8"}, default="auto"
        Type of matrix products; weights stay in float32, or in float64 with ``"float64"``.
        ``"auto"`` is bfloat16 if the hardware is fast at it, otherwise float32. ``"int8"`` is for
        predictions on a CPU with AVX512-VNNI; training is then as with ``"auto"``.
    device : str, default="auto"
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"``; ``"auto"`` uses the best one available.
    verbose : int, default=0
        1 shows progress bars: in training with loss and validation score, and with rows per second
        and time left wherever else computing takes more than a second.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, width)
        Principal axes of the PCA; only with ``n_components``.
    mean_ : ndarray of shape (width,)
        Mean of the vectors, which the PCA subtracts; only with ``n_components``.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        Fraction of the variance explained by each component; only with ``n_components``.
    model_ : transformers.BertModel
        The encoder, an ordinary transformers object.
    tokenizer_ : transformers.PreTrainedTokenizerBase
        The tokenizer of ``model_``, an ordinary transformers object.
    pooling_ : str
        The pooling in use, with ``"auto"`` resolved.
    n_features_in_ : int
        Number of columns of X in ``fit``. Not defined if X was a list or a Series of texts, which
        has no columns.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns of X in ``fit``. Defined only if X was a frame whose column names were
        all str.

    See Also
    --------
    BertClassifier : Learns the encoder and a classifier together.
    BertRegressor : The same for numbers.

    Notes
    -----
    ``pooling`` may also be ``"mean_max"``: the mean beside the maximum, twice as wide.

    ``model`` may also be a fitted estimator of skbert. Its encoder is copied in ``fit``, so later
    training of that estimator does not change the vectors. ``clone`` keeps it fitted, and
    ``get_params`` does not list its parameters. (A search clones its candidates itself, so wrap
    them in ``sklearn.frozen.FrozenEstimator``.) ``pooling="auto"`` then pools as its head does.
    ``save`` saves the encoder only; after loading, ``model`` is the saved folder.

    The windows of a long text are averaged before the PCA. A text that occurs several times is
    encoded once.

    References
    ----------
    Reimers and Gurevych 2019, "Sentence-BERT", for pooling; Devlin et al. 2019, "BERT", section
    5.3, for features from several layers.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from skbert import BertTransformer
    >>> from skbert.datasets import load_intents
    >>> X, y = load_intents(return_X_y=True)
    >>> BertTransformer().fit_transform(X).shape
    (449, 384)
    >>> pipeline = make_pipeline(BertTransformer(normalize=True), LogisticRegression())
    >>> pipeline.fit(X, y).predict(["I forgot my password and cannot sign in"])
    array(['login'], dtype=object)
    """

    model: str | os.PathLike[str] | TextEstimator | FrozenEstimator = field(
        default="sentence-transformers/all-MiniLM-L6-v2", kw_only=False
    )
    pooling: str = "auto"
    long_text: LongText = "truncate"
    layers: int | Sequence[int] | None = None
    layer_join: LayerJoin = "mean"
    normalize: bool = False
    n_components: int | None = None
    memory: str | os.PathLike[str] | joblib.Memory | None = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **TextEstimator._parameter_constraints,
        **ROW_HEAD_CONSTRAINTS,
        "model": [str, os.PathLike, TextEstimator, FrozenEstimator],
        "pooling": [StrOptions({"auto", *POOLINGS, *COMBINED})],
        "layers": [Integral, "array-like", None],
        "layer_join": [StrOptions(set(get_args(LayerJoin)))],
        "normalize": ["boolean"],
        "n_components": [COUNT, None],
        "memory": [str, os.PathLike, joblib.Memory, None],
    }

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Open the encoder, and fit the PCA if ``n_components`` is set.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            One text, or one pair of texts, per row.
        y : object, default=None
            Not used.

        Returns
        -------
        self : BertTransformer
            The fitted transformer.

        Raises
        ------
        InputError, InputTypeError
            If X or a parameter cannot be used; the message names the first bad row.
        ModelError
            If ``model`` is not found or not safe to open.
        """
        self._learn(X, embed=self.n_components is not None)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Array:  # noqa: ARG002
        """Fit, and return the vectors of the same rows, which are encoded only once.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            One text, or one pair of texts, per row.
        y : object, default=None
            Not used.

        Returns
        -------
        vectors : ndarray of shape (n_samples, n_features_out)
            The same as from ``transform``.
        """
        vectors = self._learn(X, embed=True)
        assert vectors is not None
        return vectors

    def transform_tokens(self, X: Any) -> Array:
        """Compute one vector per word piece.

        There are no vectors for special tokens. For a pair, the pieces of the first text come
        before those of the second. A piece that is in several windows gets the mean of its
        vectors. ``pooling``, ``normalize``, ``n_components`` and ``memory`` are not used.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            The texts.

        Returns
        -------
        vectors : ndarray of shape (n_samples,)
            An array of shape (n_pieces, width) for each row; rows of the same text share it.
        """
        fitted = self._state()
        rows, owner = distinct(self._rows(X, fitted.record))
        task, network = TokenFeatures(**asdict(fitted.task)), twin_of(fitted.network)
        network.head = task.head()
        precision = self._move_to_device(network)
        with ProgressBar(self, len(owner), n_done=len(owner) - len(rows)) as bar:
            vectors = predict_rows(task, rows, configure(network, task), precision, bar.on_rows)
        return vectors[owner]

    transform = TransformsTexts.transform  # set_output wraps what a class defines itself

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], **params: Any) -> Self:
        """Open a checkpoint, ready to transform single texts.

        Parameters
        ----------
        path : str or path-like
            Folder or id, as for the parameter ``model``.
        **params : dict
            Other parameters, except ``n_components``, which needs texts to fit a PCA.

        Returns
        -------
        transformer : BertTransformer
            A fitted transformer.

        Raises
        ------
        InputError
            If ``n_components`` is not None.
        ModelError
            If the checkpoint is not found or not safe to open.
        """
        transformer = cls(path, **params)
        if transformer.n_components is not None:
            raise InputError(
                f"n_components={transformer.n_components} needs texts to fit a PCA, and "
                "from_pretrained has none. Use BertTransformer(path, ...).fit(X)."
            )
        transformer._validate_params()
        network, task = open_features(transformer._unfitted_copy(), pairs=False)
        transformer._fitted = Fitted(network, task, None, {})
        return transformer

    def save(self, path: str | os.PathLike[str], *, card: Card = None) -> None:
        """Save the fitted transformer to a folder of JSON and safetensors, nothing pickled.

        Parameters
        ----------
        path : str or path-like
            Folder to create, or one that ``save`` created before. It is also a transformers
            folder, which every estimator accepts as ``model``. If ``model`` is an estimator, only
            its encoder is saved. ``memory`` is not saved.
        card : bool, dict or None, default=None
            Whether to write a model card, ``README.md``, and what to say in it, as for
            ``save_pretrained``. ``load`` does not read it.

        Raises
        ------
        SaveError
            If the folder holds other files or cannot be written, the disk is full, or an attribute
            cannot be stored as JSON, or is none that ``load`` accepts.
        ValueError
            If a parameter has been set to an invalid value.
        """
        super().save(path, card=card)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a transformer that ``save`` wrote, after checking names, sizes and hashes.

        Parameters
        ----------
        path : str or path-like
            The folder.

        Returns
        -------
        transformer : BertTransformer
            The fitted transformer, identical to the one that was saved, with two exceptions: if
            ``model`` was an estimator, it is now the folder, and ``memory`` is None, so that a
            saved folder does not decide where files are written.

        Raises
        ------
        SaveError
            If a file is missing, damaged or not written by skbert, or holds another estimator.
        """
        return super().load(path)

    def _after_load(self, folder: Path | None) -> None:
        self.model = self.model or ("" if folder is None else str(folder.resolve()))
        self.memory = None  # version 0.1 saved it
        super()._after_load(folder)
        fitted = self._fitted
        depth = fitted.network.model.config.num_hidden_layers
        if max(fitted.task.layers or (0,)) > depth:
            raise ValueError(f"layers={fitted.task.layers!r:.80}, of a model of {depth}")
        n_read = width(configure(fitted.network, fitted.task), fitted.task)
        if hasattr(self, "components_") and len(self.mean_) != n_read:
            raise ValueError(f"mean_ of {len(self.mean_)} numbers, where a vector has {n_read}")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Get the parameters of this transformer.

        Parameters
        ----------
        deep : bool, default=True
            Not used: the parameters of an estimator passed as ``model`` are not included.

        Returns
        -------
        params : dict
            Names and values.
        """
        del deep
        params: dict[str, Any] = super().get_params(deep=False)
        return params

    def __sklearn_clone__(self) -> Self:
        """Clone, and keep a fitted estimator given as ``model`` as it is."""
        fresh: Self = super().__sklearn_clone__()
        fresh.model = self.model
        return fresh

    def __sklearn_tags__(self) -> Any:
        """Add that no type of numbers is kept: there are none in X."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _width(self, fitted: Any) -> int:
        return width(fitted.network, fitted.task)

    def _vectors(self, fitted: Any, rows: Texts, n_rows: int) -> Array:
        precision = self._move_to_device(fitted.network)
        with ProgressBar(self, n_rows, n_done=n_rows - len(rows)) as bar:
            return vectors_of(self.memory, precision, fitted, rows, bar)

    def _learn(self, X: Any, *, embed: bool) -> Array | None:
        """Fit; the vectors of X where they are wanted."""
        self._validate_params()
        cache_folder(self.memory)
        settings = self._unfitted_copy()
        texts = settings._rows(X, None)
        rows, owner = distinct(texts)
        network, task = open_features(settings, pairs=rows.second is not None)
        record = FitRecord(texts.names, texts.n_columns, width=texts.width)
        fitted = Fitted(network, task, record, self._columns_of(X, texts))
        vectors = None
        if embed:
            precision = settings._move_to_device(network)
            with ProgressBar(self, len(owner), n_done=len(owner) - len(rows)) as bar:
                vectors = vectors_of(self.memory, precision, fitted, rows, bar)
            if settings.n_components is not None:
                learned = {**fitted.attributes, **pca_of(vectors, settings.n_components)}
                fitted = replace(fitted, attributes=learned)
        self._fitted = fitted
        return None if vectors is None else settings._reduce_and_normalize(vectors, fitted)[owner]
