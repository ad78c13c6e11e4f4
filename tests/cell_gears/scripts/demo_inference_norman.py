"""The calls of cell-gears' demo/tutorial_inference_Norman.ipynb: a downloaded screen and model, and predictions."""

import os
import tarfile
from zipfile import ZipFile

from gears import GEARS, PertData
from gears.utils import dataverse_download

URL = os.environ["FILES_URL"]  # the test's server in place of the Harvard Dataverse

dataverse_download(f"{URL}/6979957", "norman_umi_go.tar.gz")
with tarfile.open("norman_umi_go.tar.gz", "r:gz") as tar:
    tar.extractall(**({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # not in Python 3.11.2
dataverse_download(f"{URL}/10457098", "model.zip")
with ZipFile("model.zip", "r") as archive:
    archive.extractall(path="./")

data_path, data_name = "./", "norman_umi_go"
pert_data = PertData(data_path)
pert_data.load(data_path=data_path + data_name)
pert_data.prepare_split(split="no_test", seed=1)
pert_data.get_dataloader(batch_size=32, test_batch_size=128)

gears_model = GEARS(pert_data, device="cpu", weight_bias_track=False, proj_name="gears", exp_name="no_test")
gears_model.load_pretrained("./model_ckpt")
predicted = gears_model.predict([["CNN1", "CBL"]])

dataverse_download(f"{URL}/6979958", "genes_with_hi_mean.npy")
scores = gears_model.GI_predict(["CNN1", "CBL"], GI_genes_file="./genes_with_hi_mean.npy")

assert predicted["CNN1_CBL"].shape == (30,)
assert isinstance(scores["mag"], float)
