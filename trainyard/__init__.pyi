from trainyard.app.jobs.training_manager import InstructDataset as InstructDataset
from trainyard.app.jobs.training_manager import PreferenceDataset as PreferenceDataset
from trainyard.app.jobs.training_manager import TrainingManager as TrainingManager
from trainyard.backends.cloud.direct import FineTuneProviderFactory as FineTuneProviderFactory
from trainyard.errors import TrainyardError as TrainyardError
from trainyard.spec.programs import AdapterMethod as AdapterMethod
from trainyard.spec.programs import AlignmentMethod as AlignmentMethod
from trainyard.spec.programs import CloudFineTuneConfig as CloudFineTuneConfig
from trainyard.spec.programs import ComputeDevice as ComputeDevice
from trainyard.spec.programs import LocalTrainingConfig as LocalTrainingConfig
from trainyard.spec.programs import LoraConfig as LoraConfig
from trainyard.spec.programs import LrScheduler as LrScheduler
from trainyard.spec.programs import TrainingHyperparams as TrainingHyperparams
from trainyard.spec.states import JobState
from trainyard.surfaces.sdk.asynchronous import aio as aio
from trainyard.surfaces.sdk.asynchronous import connect_async as connect_async
from trainyard.surfaces.sdk.chains import AiGenerator as AiGenerator
from trainyard.surfaces.sdk.chains import Chain as Chain
from trainyard.surfaces.sdk.chains import DataSource as DataSource
from trainyard.surfaces.sdk.chains import Deployer as Deployer
from trainyard.surfaces.sdk.chains import Evaluator as Evaluator
from trainyard.surfaces.sdk.chains import Trainer as Trainer
from trainyard.surfaces.sdk.chains import Validator as Validator
from trainyard.surfaces.sdk.remote import connect as connect
from trainyard.surfaces.sdk.surface import here as here

TrainingJobStatus = JobState
adapters = here.adapters
check = here.check
jobs = here.jobs
plan = here.plan
run = here.run
__version__: str
