from trainyard.api.sdk.asynchronous import aio as aio
from trainyard.api.sdk.asynchronous import connect_async as connect_async
from trainyard.api.sdk.chains import AiGenerator as AiGenerator
from trainyard.api.sdk.chains import Chain as Chain
from trainyard.api.sdk.chains import DataSource as DataSource
from trainyard.api.sdk.chains import Deployer as Deployer
from trainyard.api.sdk.chains import Evaluator as Evaluator
from trainyard.api.sdk.chains import Trainer as Trainer
from trainyard.api.sdk.chains import Validator as Validator
from trainyard.api.sdk.remote import connect as connect
from trainyard.api.sdk.surface import here as here
from trainyard.errors import TrainyardError as TrainyardError

adapters = here.adapters
check = here.check
jobs = here.jobs
plan = here.plan
run = here.run
__version__: str
