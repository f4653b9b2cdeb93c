from trainyard.errors import TrainyardError as TrainyardError
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

adapters = here.adapters
check = here.check
jobs = here.jobs
plan = here.plan
run = here.run
__version__: str
