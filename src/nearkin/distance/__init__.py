"""Distances between tasks: Fréchet, cheap baselines, all pairs, screening; complexity, reachability, forecasts."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.distance.fisher_based.frechet import frechet as frechet
    from nearkin.distance.fisher_based.frechet import full_frechet as full_frechet
    from nearkin.distance.forecasting.forecasts import Forecast as Forecast
    from nearkin.distance.forecasting.forecasts import PlannedRun as PlannedRun
    from nearkin.distance.forecasting.forecasts import forecast_run as forecast_run
    from nearkin.distance.forecasting.past_runs import Goal as Goal
    from nearkin.distance.forecasting.past_runs import RecordedRun as RecordedRun
    from nearkin.distance.forecasting.signals import Signals as Signals
    from nearkin.distance.forecasting.signals import measure_signals as measure_signals
    from nearkin.distance.information.curvature import CurvatureOptions as CurvatureOptions
    from nearkin.distance.information.curvature import measure_curvature as measure_curvature
    from nearkin.distance.information.static_distance import StaticDistance as StaticDistance
    from nearkin.distance.information.static_distance import StaticOptions as StaticOptions
    from nearkin.distance.information.static_distance import TaskSamples as TaskSamples
    from nearkin.distance.information.static_distance import measure_static_distance as measure_static_distance
    from nearkin.distance.information.structure import StructureFunction as StructureFunction
    from nearkin.distance.information.structure import structure_function as structure_function
    from nearkin.distance.information.task_complexity import Complexity as Complexity
    from nearkin.distance.information.task_complexity import WeightPrior as WeightPrior
    from nearkin.distance.information.task_complexity import complexity as complexity
    from nearkin.distance.information.variational import minimise_over_covariance as minimise_over_covariance
    from nearkin.distance.information.variational import optimal_covariance as optimal_covariance
    from nearkin.distance.matrix import DistanceMatrix as DistanceMatrix
    from nearkin.distance.measure import Measure as Measure
    from nearkin.distance.measure import Need as Need
    from nearkin.distance.pair import Pair as Pair
    from nearkin.distance.pair import Source as Source
    from nearkin.distance.pair import Target as Target
    from nearkin.distance.ranking import Kin as Kin
    from nearkin.distance.ranking import Ranking as Ranking
    from nearkin.distance.reachability.descent_noise import GradientNoise as GradientNoise
    from nearkin.distance.reachability.descent_noise import gradient_noise as gradient_noise
    from nearkin.distance.reachability.escape import effective_potential as effective_potential
    from nearkin.distance.reachability.escape import kramers_time as kramers_time
    from nearkin.distance.reachability.onsager_machlup import PathAction as PathAction
    from nearkin.distance.reachability.onsager_machlup import minimise_action as minimise_action
    from nearkin.distance.reachability.onsager_machlup import path_action as path_action
    from nearkin.distance.reachability.onsager_machlup import path_potential as path_potential
    from nearkin.distance.reachability.onsager_machlup import straight_line as straight_line
    from nearkin.distance.reachability.onsager_machlup import transition_probability as transition_probability
    from nearkin.distance.reachability.potentials import AutodiffPotential as AutodiffPotential
    from nearkin.distance.reachability.potentials import NetworkPotential as NetworkPotential
    from nearkin.distance.reachability.potentials import Potential as Potential
    from nearkin.distance.reachability.potentials import hessian as hessian
    from nearkin.distance.reachability.potentials import laplacian as laplacian
    from nearkin.distance.reachability.string_method import MinimumEnergyPath as MinimumEnergyPath
    from nearkin.distance.reachability.string_method import StringOptions as StringOptions
    from nearkin.distance.reachability.string_method import barrier_height as barrier_height
    from nearkin.distance.reachability.string_method import connect_modes as connect_modes
    from nearkin.distance.reachability.string_method import minimum_energy_path as minimum_energy_path
    from nearkin.distance.reachability.string_method import path_profile as path_profile
    from nearkin.distance.reachability.trajectory import DescentOptions as DescentOptions
    from nearkin.distance.reachability.trajectory import sgd_trajectory as sgd_trajectory
    from nearkin.distance.reachability.wells import curved_double_well as curved_double_well
    from nearkin.distance.reachability.wells import double_well as double_well
    from nearkin.distance.reachability.wells import first_passage_times as first_passage_times
    from nearkin.distance.reachability.wells import mean_first_passage_time as mean_first_passage_time
    from nearkin.distance.reachability.wells import mueller_brown as mueller_brown
    from nearkin.distance.reachability.wells import narrowing_channel as narrowing_channel
    from nearkin.distance.reachability.wells import simulate_langevin as simulate_langevin
    from nearkin.distance.registry import MEASURES as MEASURES
    from nearkin.distance.registry import measure_named as measure_named
else:
    __getattr__, __dir__, __all__ = exports(__name__)
