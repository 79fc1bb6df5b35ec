# The table of the public names and the modules that they come from, a line for each. Editors
# and type checkers read it, and so does `_catalogue.py` when the package is imported.
from skbert import datasets as datasets
from skbert import distributed as distributed
from skbert import exceptions as exceptions
from skbert import inspection as inspection
from skbert import metrics as metrics
from skbert import runtime as runtime
from skbert import testing as testing
from skbert._choice.estimator import BertChoiceRanker as BertChoiceRanker
from skbert._classification.estimator import BertClassifier as BertClassifier
from skbert._conversion.tensorflow import convert_tf_checkpoint as convert_tf_checkpoint
from skbert._embedding.estimator import BertTransformer as BertTransformer
from skbert._estimator.loading import load as load
from skbert._extraction.estimator import BertSpanExtractor as BertSpanExtractor
from skbert._pretraining.estimator import BertPretrainer as BertPretrainer
from skbert._regression.estimator import BertRegressor as BertRegressor
from skbert._tagging.estimator import BertTokenTagger as BertTokenTagger

__version__: str
