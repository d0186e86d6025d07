"""One architecture for several tasks: interleaved search with transfer between encoders, and its baselines."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.multitask.augmentation_sets import SetSource as SetSource
    from nearkin.multitask.augmentation_sets import draw_sets as draw_sets
    from nearkin.multitask.encoder_transfer import Encoder as Encoder
    from nearkin.multitask.encoder_transfer import EncoderTransfer as EncoderTransfer
    from nearkin.multitask.encoder_transfer import transfer_loss as transfer_loss
    from nearkin.multitask.evaluation import EvaluationOptions as EvaluationOptions
    from nearkin.multitask.evaluation import TasksEvaluation as TasksEvaluation
    from nearkin.multitask.evaluation import evaluate_tasks as evaluate_tasks
    from nearkin.multitask.hypergradient import ChainGradient as ChainGradient
    from nearkin.multitask.hypergradient import Stage as Stage
    from nearkin.multitask.hypergradient import chain_gradient as chain_gradient
    from nearkin.multitask.hypergradient import run_chain as run_chain
    from nearkin.multitask.hypernet import HyperNetwork as HyperNetwork
    from nearkin.multitask.hypernet import encoder_weights as encoder_weights
    from nearkin.multitask.interleave import Interleave as Interleave
    from nearkin.multitask.interleave import InterleaveOptions as InterleaveOptions
    from nearkin.multitask.joint.branched import Branched as Branched
    from nearkin.multitask.joint.branched import BranchedOptions as BranchedOptions
    from nearkin.multitask.joint.fused_columns import FusedColumns as FusedColumns
    from nearkin.multitask.joint.fused_columns import FusedColumnsOptions as FusedColumnsOptions
    from nearkin.multitask.joint.independent import independent_searches as independent_searches
    from nearkin.multitask.joint.independent import run_searches as run_searches
    from nearkin.multitask.joint.joint_search import Joint as Joint
    from nearkin.multitask.joint.joint_search import JointOptions as JointOptions
    from nearkin.multitask.joint.minibatch_interleaving import MinibatchInterleaving as MinibatchInterleaving
    from nearkin.multitask.joint.minibatch_interleaving import MinibatchOptions as MinibatchOptions
    from nearkin.multitask.joint.separate_interleaving import SeparateInterleaving as SeparateInterleaving
    from nearkin.multitask.joint.separate_interleaving import SeparateOptions as SeparateOptions
    from nearkin.multitask.matching import Matching as Matching
    from nearkin.multitask.matching import MatchingOptions as MatchingOptions
    from nearkin.multitask.matching import embedding_distance as embedding_distance
    from nearkin.multitask.matching import match_encoders as match_encoders
    from nearkin.multitask.matching import set_differences as set_differences
    from nearkin.multitask.matching import similarity_distance as similarity_distance
    from nearkin.multitask.matching import weight_distance as weight_distance
    from nearkin.multitask.methods import MULTITASK_METHODS as MULTITASK_METHODS
    from nearkin.multitask.methods import multitask_method as multitask_method
    from nearkin.multitask.missing_labels import PartlyLabelled as PartlyLabelled
    from nearkin.multitask.missing_labels import tasks_with_missing_labels as tasks_with_missing_labels
    from nearkin.multitask.significance import RunComparison as RunComparison
    from nearkin.multitask.significance import compare_methods as compare_methods
else:
    __getattr__, __dir__, __all__ = exports(__name__)
